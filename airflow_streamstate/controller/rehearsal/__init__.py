"""What a change would do, before it is made: plans compared, and the new version tried on a fork."""
