"""pgqueuer at the same work as ours; one line of JSON. See ../README.md."""

import argparse
import asyncio
import importlib.metadata
import json
import sys
import time
from datetime import timedelta
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

BATCH = 1000  # messages in a transaction of `insert`
PATIENCE = 60.0  # seconds without progress after which a peer is given up
FIRST = 1_000_000_000
PAD = "x" * 171
SETTINGS = {
    "insert": "enqueue with lists of 1000",
    "insert-one": "enqueue",
    "drain": "batch 500, a pool of 10 connections, LISTEN, durable tables, uvloop",
    "latency": "batch 500, a pool of 10 connections, LISTEN, durable tables, uvloop",
}


def order(n: int) -> bytes:
    return json.dumps({"order": FIRST + n, "pad": PAD}, separators=(",", ":")).encode()


class Seen:
    """When each message reached the handler."""

    def __init__(self, count: int) -> None:
        self.at = [0.0] * count
        self.all = 0
        self.distinct = 0

    def handle(self, payload: bytes) -> None:
        n = json.loads(payload)["order"] - FIRST
        if not self.at[n]:
            self.at[n] = time.perf_counter()
            self.distinct += 1
        self.all += 1

    def verify(self) -> None:
        count = len(self.at)
        if (self.all, self.distinct) != (count, count):
            raise RuntimeError(f"the handler was called {self.all} times for {self.distinct} different messages of {count}")


class Run:
    def __init__(self, url: str, control: asyncpg.Connection, producer: asyncpg.Connection) -> None:
        self.url = url
        self.control = control
        self.producer = Queries(AsyncpgDriver(producer))

    async def load(self, count: int) -> None:
        for start in range(0, count, BATCH):
            bodies = [order(n) for n in range(start, min(count, start + BATCH))]
            await self.producer.enqueue(["order"] * len(bodies), bodies, [0] * len(bodies))

    async def undone(self) -> int:
        return await self.control.fetchval("SELECT count(*) FROM pgqueuer")

    async def verify_loaded(self, count: int) -> None:
        found = await self.undone()
        if found != count:
            raise RuntimeError(f"{count} messages were inserted, the tables have {found}")

    async def finished(self, seen: Seen, count: int) -> float:
        before, progress = 0, time.perf_counter()
        while seen.all < count:
            if seen.all != before:
                before, progress = seen.all, time.perf_counter()
            if time.perf_counter() - progress > PATIENCE:
                raise RuntimeError(f"only {before} of {count} messages were handled")
            await asyncio.sleep(0.001)
        # Until the question was asked that found none left: what the question itself costs is ours, not theirs.
        since = time.perf_counter()
        while True:
            asked = time.perf_counter()
            if not await self.undone():
                return asked
            if time.perf_counter() - since > PATIENCE:
                raise RuntimeError("all were handled, but not all are recorded as done")
            await asyncio.sleep(0.001)

    async def verify_drained(self, seen: Seen, count: int) -> None:
        seen.verify()
        left = await self.undone()
        if left:
            raise RuntimeError(f"{left} messages are left in the tables")
        done = await self.control.fetchval("SELECT count(DISTINCT job_id) FROM pgqueuer_log WHERE status = 'successful'")
        if done != count:
            raise RuntimeError(f"{done} of {count} messages are recorded as done")

    async def start(self, seen: Seen, pool: asyncpg.Pool) -> tuple[PgQueuer, asyncio.Task]:
        worker = PgQueuer.from_asyncpg_pool(pool)

        @worker.entrypoint("order")
        async def handle(job: Job) -> None:
            seen.handle(job.payload)

        return worker, asyncio.create_task(worker.run(batch_size=500, dequeue_timeout=timedelta(seconds=30)))

    async def insert(self, count: int) -> dict:
        start = time.perf_counter()
        await self.load(count)
        took = time.perf_counter() - start
        await self.verify_loaded(count)
        return {"per_second": round(count / took, 1)}

    async def insert_one(self, count: int) -> dict:
        start = time.perf_counter()
        for n in range(count):
            await self.producer.enqueue("order", order(n))
        took = time.perf_counter() - start
        await self.verify_loaded(count)
        return {"per_second": round(count / took, 1)}

    async def drain(self, count: int) -> dict:
        await self.load(count)
        await self.verify_loaded(count)
        await self.control.execute("ANALYZE")
        await self.control.execute("CHECKPOINT")
        seen = Seen(count)
        async with asyncpg.create_pool(self.url, min_size=10, max_size=10) as pool:
            start = time.perf_counter()
            worker, running = await self.start(seen, pool)
            took = await self.finished(seen, count) - start
            worker.shutdown.set()
            await running
        await self.verify_drained(seen, count)
        return {"per_second": round(count / took, 1)}

    async def latency(self, rate: int, seconds: int) -> dict:
        # The first second fills pools and caches of statements, and is not counted.
        warm, count = rate, rate * (seconds + 1)
        seen = Seen(count)
        committed = [0.0] * count
        async with asyncpg.create_pool(self.url, min_size=10, max_size=10) as pool:
            worker, running = await self.start(seen, pool)
            await asyncio.sleep(1)
            start = time.perf_counter()
            for n in range(count):
                early = start + n / rate - time.perf_counter()
                if early > 0:
                    await asyncio.sleep(early)
                await self.producer.enqueue("order", order(n))
                committed[n] = time.perf_counter()
            await self.finished(seen, count)
            worker.shutdown.set()
            await running
        await self.verify_drained(seen, count)
        times = sorted(max(0.0, seen.at[n] - committed[n]) for n in range(warm, count))
        took = committed[-1] - committed[warm - 1]
        return {
            "p50_ms": round(times[(len(times) - 1) // 2] * 1000, 3),
            "p99_ms": round(times[int((len(times) - 1) * 0.99)] * 1000, 3),
            "offered_per_second": round((count - warm) / took, 1),
        }


async def main(arguments: argparse.Namespace) -> dict:
    admin = await asyncpg.connect(arguments.url)
    drop = "DROP DATABASE IF EXISTS peers_pgqueuer WITH (FORCE)"
    await admin.execute(drop)
    await admin.execute("CREATE DATABASE peers_pgqueuer")
    url = urlunsplit(urlsplit(arguments.url)._replace(path="/peers_pgqueuer"))
    control, producer = await asyncpg.connect(url), await asyncpg.connect(url)
    run = Run(url, control, producer)
    await run.producer.install()
    match arguments.work:
        case "insert":
            figures = await run.insert(arguments.count or 20_000)
        case "insert-one":
            figures = await run.insert_one(arguments.count or 2000)
        case "drain":
            figures = await run.drain(arguments.count or 20_000)
        case _:
            figures = await run.latency(arguments.rate, arguments.seconds)
    await control.close()
    await producer.close()
    await admin.execute(drop)
    await admin.close()
    return {
        "peer": "pgqueuer",
        "version": importlib.metadata.version("pgqueuer"),
        "work": arguments.work,
        **figures,
        "settings": f"{SETTINGS[arguments.work]}; Python {sys.version.split()[0]}, asyncpg {asyncpg.__version__}",
    }


def above_zero(word: str) -> int:
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError("needs a number above zero")
    return number


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=["pgqueuer"])
    parser.add_argument("work", choices=["insert", "insert-one", "drain", "latency"])
    parser.add_argument("--url", required=True)
    parser.add_argument("--count", type=above_zero)
    parser.add_argument("--seconds", type=above_zero, default=10)
    parser.add_argument("--rate", type=above_zero, default=500)
    try:
        print(json.dumps(uvloop.run(main(parser.parse_args()))))
    except Exception as error:
        sys.exit(f"peers: {error}")
