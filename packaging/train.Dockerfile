# An image with ddprun and train, from the wheels of scripts/package and scripts/package_train. Build it in the folder
# that holds both:
#
#   scripts/package --out dist && scripts/package_train --out dist
#   docker build -f packaging/train.Dockerfile -t ddprun-train dist
#   docker run --rm --shm-size=1g ddprun-train ddprun --nproc-per-node 2 train --dataset synthetic --steps 20
#
# pip brings the torch that train was built with, of several GB; BASE may be an image that has it already
# (--build-arg BASE=pytorch/pytorch:...), or any other with python3, its venv module, and glibc >= 2.35.
ARG BASE=python:3.12-slim
FROM $BASE
COPY ddprun-*.whl ddprun_train-*.whl /tmp/wheels/
# In an environment of its own, which sees the image's packages: some images' Python takes none from pip.
RUN python3 -m venv --system-site-packages /opt/ddprun && /opt/ddprun/bin/pip install --no-cache-dir /tmp/wheels/*.whl && rm -r /tmp/wheels
ENV PATH=/opt/ddprun/bin:$PATH
