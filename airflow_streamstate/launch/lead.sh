# Leads the session of one driver.  Usage: sh lead.sh FOLDER COMMAND...
# Keeps the exit status of COMMAND, which only its parent learns, in FOLDER/exit_status, and writes it only when nothing
# else of the session is left: what systemd calls KillMode=control-group.

folder=$1
shift

# Handlers, not '': a signal that is ignored here would be ignored by COMMAND too.
trap : HUP INT QUIT TERM

"$@"
code=$?

others() {
    left=
    for stat in /proc/[0-9]*/stat; do
        { read -r line < "$stat"; } 2>/dev/null || continue
        pid=${line%% *}
        set -- ${line##*) }
        # After the name: state, parent, group, session.
        [ "$4" = "$$" ] && [ "$pid" != "$$" ] && [ "$1" != Z ] && [ "$1" != X ] && left="$left $pid"
    done
}

# What is left: a python that outlives its JVM, Spark's python workers. 2 s to end by themselves, then TERM; 3 s later KILL.
turns=0
others
while [ -n "$left" ] && [ "$turns" -lt 100 ]; do
    turns=$((turns + 1))
    [ "$turns" -eq 20 ] && kill -TERM $left 2>/dev/null
    [ "$turns" -ge 50 ] && kill -KILL $left 2>/dev/null
    sleep 0.1
    others
done

# One write of a builtin: a reader waits for the newline, and there is no mv that a kill could hit instead of COMMAND.
printf '%s\n' "$code" > "$folder/exit_status"
exit "$code"
