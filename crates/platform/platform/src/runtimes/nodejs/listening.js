"use strict";
// The listening socket, by which a process detects that it is a clone: a clone has another socket
// than its
// parent. Nothing else differs; even the pid is the same.
const fs = require("node:fs");

class Listening {
  #server;
  #remembered;

  constructor(server) {
    this.#server = server;
  }

  // Remembers the socket of this process.
  remember() {
    this.#remembered = this.#identity();
  }

  // Whether the socket is not the remembered one.
  isOther() {
    return this.#identity() !== this.#remembered;
  }

  // Inode numbers are unique within one machine and network only.
  #identity() {
    const { ino } = fs.fstatSync(this.#server._handle.fd);
    const boot = fs.readFileSync("/proc/sys/kernel/random/boot_id", "utf8");
    return `${ino} ${fs.readlinkSync("/proc/self/ns/net")} ${boot}`;
  }
}

module.exports = { Listening };
