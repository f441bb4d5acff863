# syntax=docker/dockerfile:1

FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG TARGETOS TARGETARCH
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -tags nodemo -trimpath -ldflags="-s -w" -o /out/relay ./cmd/relay

# No shell, no package manager, certificates and time zones only.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/relay /relay
USER 65532:65532
EXPOSE 7070
# The longest way to stop is drain_timeout; give the container a little more.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=10s CMD ["/relay", "status", "--ready"]
ENTRYPOINT ["/relay"]
CMD ["run"]
