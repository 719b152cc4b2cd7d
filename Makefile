# Two commands do everything on a fresh machine:
#   make evolve   set up, build, evolve SHAPE on the GPU if there is one, else on the CPU
#   make test     set up, build, run every test that this machine can run; TIER=fast units and kernels on the emulator alone
#
# PRESET chooses a preset of CMakePresets.json; JOBS the number of parallel builds and tests.

PRESET ?= release
JOBS ?= $(shell nproc)
SHAPE ?= b1h8l512d64
TIER ?= full

.PHONY: evolve test setup build format clean

evolve:
	@scripts/setup
	@scripts/build $(PRESET) $(JOBS) heed
	@build/$(PRESET)/heed evolve --shape $(SHAPE) --python "$$(scripts/python-with-torch)"

test:
	@scripts/setup --tests
	@scripts/build $(PRESET) $(JOBS) all
	@scripts/test $(PRESET) $(JOBS) "$(TIER)"

setup:
	@scripts/setup --tests

build: setup
	@scripts/build $(PRESET) $(JOBS) all

format:
	@scripts/format

clean:
	rm -rf build
