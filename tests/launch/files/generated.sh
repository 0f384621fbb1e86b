#!/bin/bash
# Writes a script and runs it: what is written is not a command here.
cat > run.sh <<'EOF'
vllm serve never
EOF
tmux new-session -d -s one 'vllm serve in-tmux --port 8001'
bash -c "cd /srv; vllm serve in-bash --port $((8000 + 2)) | tee log"
for p in {8010..8012..2} 8020; do bash -lc 'exec vllm serve looped --port "$0"' "$p" & done
