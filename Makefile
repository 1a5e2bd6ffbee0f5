# Every target sets up what it needs; the work is in setup/.
.POSIX:
.PHONY: help run test test-long bench lint package clean setup

help:
	@echo "make run        set up, build, and start farfork with sample functions"
	@echo "make test       set up and run every test that fits in minutes"
	@echo "make test-long  the same with soaks, long fuzzing and guests in QEMU"
	@echo "make bench      measure; tables and plots go to bench/results/"
	@echo "make lint       formatting, clippy, ruff and the style tests"
	@echo "make package    build a wheel and a Debian package below build/package/"
	@echo "make clean      remove build products and the Python environment"

setup:
	@setup/all.sh

run: setup
	cargo build --release $$(setup/features.sh)
	.venv/bin/python -m farfork.demo
	.venv/bin/python -m farfork.demo.platform

test:
	@setup/all.sh --tests
	@setup/test.sh

test-long:
	@FARFORK_TEST_LONG=1 setup/all.sh --tests
	@FARFORK_TEST_LONG=1 setup/test.sh

bench: setup
	@setup/bench.sh
	.venv/bin/python bench/run.py

lint: setup
	@setup/test.sh lint

package: setup
	@setup/package.sh

clean:
	cargo clean
	rm -rf .venv build crates/fork/restorer/target fuzz/target
