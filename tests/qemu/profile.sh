#!/bin/sh
set -eu
# A real function is profiled where a memory node has no processors: every share is measured, and the pages of the function lie
# where they were asked to. Times are those of an emulated processor, and mean nothing.
export PYTHONPATH=/farfork/python PYTHONDONTWRITEBYTECODE=1
profile() {
    timeout 1200 /farfork/debug/farfork profile /farfork/pagerank --python /usr/bin/python3 "$@" </dev/null
}

echo "SCENE profile"
profile --shares 0,0.3,0.8,1 --calls 3 --json >/tmp/profile.json || echo "SCENE FAILED: profile"
cat /tmp/profile.json

echo "SCENE profile counts"
python3 /profile.py </tmp/profile.json || echo "SCENE FAILED: profile counts"

echo "SCENE profile refusals"
words=$(profile --placement hottest 2>&1) && echo "SCENE FAILED: profile refusals"
case $words in
    *"only the model knows"*) ;;
    *) echo "SCENE FAILED: profile refusals: $words" ;;
esac
