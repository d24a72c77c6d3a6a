package main

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"io"

	"go.gazette.dev/core/broker/client"
	pb "go.gazette.dev/core/broker/protocol"
)

// source is what Reader and RetryReader have in common.
type source interface {
	io.Reader
	position() int64
}

type oneReader struct{ *client.Reader }

func (r oneReader) position() int64 { return r.Request.Offset }

type retryingReader struct{ *client.RetryReader }

func (r retryingReader) position() int64 { return r.Offset() }

func runReader(ctx context.Context, o *options, rjc pb.RoutedJournalClient) (event, error) {
	return readAll(oneReader{client.NewReader(ctx, rjc, o.readRequest())}, o)
}

func runRetryReader(ctx context.Context, o *options, rjc pb.RoutedJournalClient) (event, error) {
	return readAll(retryingReader{client.NewRetryReader(ctx, rjc, o.readRequest())}, o)
}

// readAll reads until an error. It says where each jump led to, and at the end what was read. The
// errors by which a reading ends as planned are told in "reason".
func readAll(from source, o *options) (event, error) {
	var sum = sha1.New()
	var buffer = make([]byte, o.bufferSize)
	var total int64
	for {
		var before = from.position()
		var n, err = from.Read(buffer)
		sum.Write(buffer[:n])
		total += int64(n)
		if err == nil {
			if o.block && n != 0 {
				emit(event{"event": "read", "offset": from.position(), "sha1": hex.EncodeToString(sum.Sum(nil))})
			}
			continue
		}
		if err == client.ErrOffsetJump {
			emit(event{"event": "jump", "from": before, "to": from.position()})
			continue
		}
		var end = event{
			"bytes":  total,
			"offset": from.position(),
			"sha1":   hex.EncodeToString(sum.Sum(nil)),
		}
		switch err {
		case io.EOF, client.ErrOffsetNotYetAvailable, context.Canceled:
			end["reason"] = err.Error()
			return end, nil
		}
		return end, err
	}
}
