package main

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"io"
	"time"

	"go.gazette.dev/core/broker/client"
	pb "go.gazette.dev/core/broker/protocol"
)

// runBenchRead reads to the end offset, or else to the write head.
func runBenchRead(ctx context.Context, o *options, rjc pb.RoutedJournalClient) (event, error) {
	var reader = client.NewRetryReader(ctx, rjc, o.readRequest())
	var buffer = make([]byte, o.bufferSize)
	var total int64
	var began = time.Now()
	for {
		var n, err = reader.Read(buffer)
		total += int64(n)
		switch err {
		case nil, client.ErrOffsetJump:
			continue
		case io.EOF, client.ErrOffsetNotYetAvailable:
			return rate(total, began), nil
		}
		return rate(total, began), err
	}
}

// runBenchAppend appends the same content again and again.
func runBenchAppend(ctx context.Context, o *options, rjc pb.RoutedJournalClient) (event, error) {
	var request, err = o.appendRequest()
	if err != nil {
		return nil, err
	}
	var content = noise(o.appendSize)
	var total int64
	var began = time.Now()
	for total < o.size {
		response, err := client.Append(ctx, rjc, request, bytes.NewReader(content))
		if err != nil {
			return rate(total, began), err
		}
		if got := response.Commit.End - response.Commit.Begin; got != int64(len(content)) {
			return rate(total, began), fmt.Errorf("append of %d bytes gave %d", len(content), got)
		}
		total += int64(len(content))
	}
	return rate(total, began), nil
}

// runBenchService appends numbered records, one append each.
func runBenchService(ctx context.Context, o *options, rjc pb.RoutedJournalClient) (event, error) {
	var request, err = o.appendRequest()
	if err != nil {
		return nil, err
	}
	var service = client.NewAppendService(ctx, rjc)
	var records = o.size / int64(o.recordSize)
	var sum = sha1.New()
	var pad = bytes.Repeat([]byte{'.'}, o.recordSize)
	var record = make([]byte, 0, o.recordSize)
	var last *client.AsyncAppend
	var began = time.Now()
	for number := int64(0); number != records; number++ {
		record = fmt.Appendf(record[:0], "%019d ", number)
		record = append(append(record, pad[len(record)+1:]...), '\n')
		sum.Write(record)
		last = service.StartAppend(request, nil)
		_, _ = last.Writer().Write(record)
		if err = last.Release(); err != nil {
			return nil, err
		}
	}
	for op := range service.PendingExcept("") {
		if err = op.Err(); err != nil {
			return nil, err
		}
	}
	var end = rate(records*int64(o.recordSize), began)
	end["records"], end["sha1"] = records, hex.EncodeToString(sum.Sum(nil))
	end["records_per_s"] = float64(records) / time.Since(began).Seconds()
	return end, nil
}

func rate(total int64, began time.Time) event {
	var seconds = time.Since(began).Seconds()
	return event{"bytes": total, "seconds": seconds, "mb_per_s": float64(total) / 1e6 / seconds}
}

// noise returns bytes that do not compress, the same ones each time.
func noise(size int) []byte {
	var out = make([]byte, size)
	var state uint64 = 0x9e3779b97f4a7c15
	for at := range out {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		out[at] = byte(state)
	}
	return out
}
