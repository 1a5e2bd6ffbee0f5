"""CPython's asyncio: a loop in a thread of its own with tasks, timers, streams, an executor and
a child process. The loop waits in an epoll while the main thread waits for its byte."""

import asyncio
import os
import socket
import sys
import threading

PEERS = 20


def check(what, expected, seen):
    if expected != seen:
        os.write(1, f"FAIL: {what}: expected {expected!r}, saw {seen!r}\n".encode())
        os._exit(1)


async def echo(reader, writer):
    """Answers each line with its number among those of this connection."""
    number = 0
    while line := await reader.readline():
        number += 1
        writer.write(b"%d %s" % (number, line))
        await writer.drain()
    writer.close()


class Peer:
    """A client of `echo` and the number of its requests so far."""

    async def connect(self):
        mine, theirs = socket.socketpair()
        self.echo = asyncio.create_task(echo(*await asyncio.open_connection(sock=theirs)))
        self.reader, self.writer = await asyncio.open_connection(sock=mine)
        self.requests = 0
        return self

    async def ask(self, text):
        self.requests += 1
        self.writer.write(text + b"\n")
        answer = await asyncio.wait_for(self.reader.readline(), 20)
        check("answer of a stream", b"%d %s\n" % (self.requests, text), answer)

    async def close(self):
        self.writer.close()
        await asyncio.wait_for(self.echo, 20)


class Everything:
    """What the loop has under way while the process is checkpointed."""

    async def begin(self):
        self.ticks = 0
        self.ticker = asyncio.create_task(self.tick())
        self.peers = [await Peer().connect() for _ in range(PEERS)]
        await self.ask_all(b"before")
        self.woken = asyncio.Event()
        self.sleeper = asyncio.create_task(self.woken.wait())
        self.queue = asyncio.Queue()
        self.consumer = asyncio.create_task(self.consume())
        await self.queue.put(1)
        check("executor", 55, await asyncio.to_thread(sum, range(11)))

    async def tick(self):
        while True:
            await asyncio.sleep(0.005)
            self.ticks += 1

    async def consume(self):
        total = 0
        while (item := await self.queue.get()) is not None:
            total += item
        return total

    async def ask_all(self, text):
        await asyncio.gather(*(peer.ask(text) for peer in self.peers))

    async def end(self):
        await self.ask_all(b"after")
        was = self.ticks
        await asyncio.sleep(0.1)
        check("a timer that goes on", True, self.ticks > was)
        self.ticker.cancel()
        check("a sleeping task", False, self.sleeper.done())
        self.woken.set()
        check("its result", True, await asyncio.wait_for(self.sleeper, 20))
        for item in (2, 3, None):
            await self.queue.put(item)
        check("sum of the queue", 6, await asyncio.wait_for(self.consumer, 20))
        check("executor", 4950, await asyncio.to_thread(sum, range(100)))
        child = await asyncio.create_subprocess_exec("/bin/echo", "child", stdout=-1)
        check("child's output", (b"child\n", None), await child.communicate())
        for peer in self.peers:
            await peer.close()


def main():
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    everything = Everything()
    asyncio.run_coroutine_threadsafe(everything.begin(), loop).result(30)

    os.write(1, b"READY\n")
    check("stdin", 1, len(os.read(0, 1)))

    asyncio.run_coroutine_threadsafe(everything.end(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(20)
    check("thread alive", False, thread.is_alive())
    print("PASS", flush=True)


if __name__ == "__main__":
    sys.exit(main())
