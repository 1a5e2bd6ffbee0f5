"use strict";
// The socket a process listens on, by which a clone learns that it is one: it finds another one in its place,
// and is told nothing else; even its pid is its parent's.
const fs = require("node:fs");

class Listening {
  #server;
  #remembered;

  constructor(server) {
    this.#server = server;
  }

  // Takes the socket as this process's own.
  remember() {
    this.#remembered = this.#identity();
  }

  // Whether there is another than the remembered one.
  isOther() {
    return this.#identity() !== this.#remembered;
  }

  // Machines number sockets and networks independently of each other.
  #identity() {
    const { ino } = fs.fstatSync(this.#server._handle.fd);
    const boot = fs.readFileSync("/proc/sys/kernel/random/boot_id", "utf8");
    return `${ino} ${fs.readlinkSync("/proc/self/ns/net")} ${boot}`;
  }
}

module.exports = { Listening };
