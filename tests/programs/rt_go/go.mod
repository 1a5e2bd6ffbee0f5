module farfork.test/rt_go

// What Debian 12 has.
go 1.19
