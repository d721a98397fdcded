# An image with ddprun and train, from the wheels of scripts/package and scripts/package_train. Build it in the folder
# that holds both:
#
#   scripts/package --out dist && scripts/package_train --out dist
#   docker build -f packaging/train.Dockerfile -t ddprun-train dist
#   docker run --rm --shm-size=1g ddprun-train ddprun --nproc-per-node 2 train --dataset synthetic --steps 20
#
# pip brings the torch that train was built with, of several GB; BASE may be an image that has it already
# (--build-arg BASE=pytorch/pytorch:...), or any other with python3, pip, and glibc >= 2.35.
ARG BASE=python:3.12-slim
FROM $BASE
COPY ddprun-*.whl ddprun_train-*.whl /tmp/wheels/
# Beside the image's torch, where train looks for it; so in no environment of its own, which Debian's Python asks for.
RUN PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir /tmp/wheels/*.whl && rm -r /tmp/wheels
