"""Scripts that differ in how they wait for their queries; each counts rows per window and key.

``VERSION`` in a script means its version. ``start()`` starts the one query, ``counts``.
"""

from __future__ import annotations

from support.drivers import WINDOWED_COUNTS

HEAD = (
    WINDOWED_COUNTS
    + """
import os
import signal
import threading
import time

writer = counts.writeStream.queryName("counts").format("json").trigger(processingTime="100 milliseconds")


def start():
    return writer.start(base + "/out")


print("version VERSION", flush=True)
"""
)

SHAPES = {
    "await": "start().awaitTermination()",
    "await with a timeout in a loop": """
query = start()
while not query.awaitTermination(1):
    print("still running", flush=True)
""",
    "await with a timeout in an endless loop": """
query = start()
while True:
    query.awaitTermination(1)
""",
    "awaitAnyTermination": """
start()
spark.streams.awaitAnyTermination()
""",
    "awaitAnyTermination with a timeout in a loop": """
start()
while not spark.streams.awaitAnyTermination(1):
    print("still running", flush=True)
""",
    "awaitAnyTermination and resetTerminated in a loop": """
start()
while True:
    spark.streams.awaitAnyTermination()
    spark.streams.resetTerminated()
""",
    "isActive in a loop": """
query = start()
while query.isActive:
    time.sleep(0.5)
""",
    "streams.active in a loop": """
start()
while spark.streams.active:
    time.sleep(0.5)
""",
    "processAllAvailable in a loop": """
query = start()
while True:
    query.processAllAvailable()
    time.sleep(0.2)
""",
    "a thread for the query": """
threading.Thread(target=lambda: start().awaitTermination()).start()
""",
    "a pool of threads": """
from concurrent.futures import ThreadPoolExecutor

pool = ThreadPoolExecutor(2)
pool.submit(lambda: start().awaitTermination())
""",
    "a thread for the query, and sleep for ever": """
threading.Thread(target=lambda: start().awaitTermination(), daemon=True).start()
while True:
    time.sleep(60)
""",
    "an event that never comes": """
query = start()
threading.Event().wait()
""",
    "a monitor that prints for ever": """
query = start()


def monitor():
    while True:
        print("progress", query.lastProgress and query.lastProgress.batchId, len(query.recentProgress), flush=True)
        print("status", query.status["message"], flush=True)
        time.sleep(1)


threading.Thread(target=monitor).start()
query.awaitTermination()
""",
    "threads of all kinds": """
from concurrent.futures import ThreadPoolExecutor

queries = []


def run():
    queries.append(start())
    queries[0].awaitTermination()


def monitor():
    while True:
        if queries:
            print("progress", queries[0].lastProgress and queries[0].lastProgress.batchId, flush=True)
            print("status", queries[0].status["message"], len(queries[0].recentProgress), flush=True)
        time.sleep(1)


ThreadPoolExecutor(2).submit(run)
threading.Thread(target=monitor).start()
threading.Thread(target=monitor, daemon=True).start()
while True:
    time.sleep(60)
""",
    "stopped by the script": """
query = start()
while not os.path.exists(base + "/enough"):
    time.sleep(0.2)
query.stop()
spark.stop()
""",
    "restarted by the script": """
while True:
    query = start()
    query.awaitTermination(3)
    query.stop()
""",
    "restarted when it ended": """
while True:
    query = writer.trigger(availableNow=True).start(base + "/out")
    query.awaitTermination()
    time.sleep(0.5)
""",
    "two queries, one ends first": """
seen = rows.writeStream.queryName("seen").format("json").trigger(availableNow=True).start(base + "/seen")
query = start()
spark.streams.awaitAnyTermination()
seen.awaitTermination()
spark.streams.resetTerminated()
query.awaitTermination()
""",
    "a query after another's end": """
seen = rows.writeStream.queryName("seen").format("json").trigger(availableNow=True).start(base + "/seen")
seen.awaitTermination()
start().awaitTermination()
""",
    "interrupts and signals": """
query = start()
is_told = False


def told(number, frame):
    global is_told
    is_told = True


signal.signal(signal.SIGTERM, told)
signal.signal(signal.SIGINT, told)
try:
    while not is_told:
        time.sleep(1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
query.stop()
""",
    "finally": """
query = start()
try:
    query.awaitTermination()
except KeyboardInterrupt:
    query.stop()
finally:
    spark.stop()
""",
    "at exit": """
import atexit

query = start()
atexit.register(lambda: print("at exit VERSION", flush=True))
atexit.register(query.stop)
query.awaitTermination()
""",
    "asyncio": """
import asyncio


async def main():
    query = start()
    while query.isActive:
        await asyncio.sleep(0.5)


asyncio.run(main())
""",
    "asyncio with a wait in its executor": """
import asyncio


async def report(query):
    while True:
        print("status", query.status["message"], flush=True)
        await asyncio.sleep(1)


async def main():
    query = start()
    reporting = asyncio.create_task(report(query))
    await asyncio.get_running_loop().run_in_executor(None, query.awaitTermination)
    reporting.cancel()


asyncio.run(main())
""",
    "asyncio for ever": """
import asyncio


async def main():
    start()
    await asyncio.Event().wait()


asyncio.run(main())
""",
    "waits for the first progress": """
query = start()
while not query.recentProgress:
    time.sleep(0.1)
print("first progress", query.recentProgress[0].batchId, query.status["isDataAvailable"], flush=True)
query.awaitTermination()
""",
}
