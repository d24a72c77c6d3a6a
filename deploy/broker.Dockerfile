# Gazette's broker and an S3 server over a directory, of the releases that the tests run with.

FROM golang:1.25-bookworm AS build
ARG GAZETTE=v0.103.0
ARG VERSITYGW=v1.8.0
# The broker's ZSTANDARD codec is C.
RUN CGO_ENABLED=1 go install -trimpath go.gazette.dev/core/cmd/gazette@$GAZETTE \
    && CGO_ENABLED=1 go install -trimpath go.gazette.dev/core/cmd/gazctl@$GAZETTE \
    && CGO_ENABLED=0 go install -trimpath github.com/versity/versitygw/cmd/versitygw@$VERSITYGW

FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/*
COPY --from=build /go/bin/gazette /go/bin/gazctl /go/bin/versitygw /usr/local/bin/
