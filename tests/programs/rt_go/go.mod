module farfork.test/rt_go

go 1.26
