package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"

	"go.gazette.dev/core/broker/client"
	pb "go.gazette.dev/core/broker/protocol"
)

func runAppender(ctx context.Context, o *options, rjc pb.RoutedJournalClient) (event, error) {
	var request, err = o.appendRequest()
	if err != nil {
		return nil, err
	}
	var appender = client.NewAppender(ctx, rjc, request)
	if _, err = io.Copy(appender, os.Stdin); err != nil {
		appender.Abort()
	} else {
		err = appender.Close()
	}
	return answered(appender.Response), err
}

func runAppend(ctx context.Context, o *options, rjc pb.RoutedJournalClient) (event, error) {
	var request, err = o.appendRequest()
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(os.Stdin)
	if err != nil {
		return nil, err
	}
	response, err := client.Append(ctx, rjc, request, bytes.NewReader(content))
	return answered(response), err
}

// answered returns what a broker said of an append.
func answered(response pb.AppendResponse) event {
	var registers = event{}
	if response.Registers != nil {
		for _, label := range response.Registers.Labels {
			registers[label.Name] = label.Value
		}
	}
	var said = event{"status": response.Status.String(), "registers": registers}
	if response.Commit != nil {
		var digest = response.Commit.Sum.ToDigest()
		said["begin"], said["end"] = response.Commit.Begin, response.Commit.End
		said["sha1"] = hex.EncodeToString(digest[:])
	}
	return said
}

// order is a line of standard input in mode append-service.
type order struct {
	Journal string `json:"journal"`
	Content string `json:"content"`
	// Abort rolls the content back before it is released.
	Abort bool `json:"abort"`
	// After makes the append wait for all that is pending at other journals.
	After bool `json:"after"`
}

var errAborted = errors.New("aborted by its order")

// runAppendService starts all appends of its orders, and then tells what became of each.
func runAppendService(ctx context.Context, _ *options, rjc pb.RoutedJournalClient) (event, error) {
	var service = client.NewAppendService(ctx, rjc)
	var started []*client.AsyncAppend
	var lines = bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var given order
		if err := json.Unmarshal(lines.Bytes(), &given); err != nil {
			return nil, err
		}
		var dependencies client.OpFutures
		if given.After {
			dependencies = service.PendingExcept(pb.Journal(given.Journal))
		}
		var op = service.StartAppend(pb.AppendRequest{Journal: pb.Journal(given.Journal)}, dependencies)
		_, _ = op.Writer().WriteString(given.Content)
		if given.Abort {
			op.Require(errAborted)
		}
		if err := op.Release(); err != nil {
			op = nil // Rolled back.
		}
		started = append(started, op)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	var batches = make(map[*client.AsyncAppend]struct{})
	for index, op := range started {
		if op == nil {
			emit(event{"event": "aborted", "index": index})
			continue
		}
		batches[op] = struct{}{}
		if err := op.Err(); err != nil {
			emit(event{"event": "failed", "index": index, "error": err.Error()})
			continue
		}
		var told = answered(op.Response())
		told["event"], told["index"] = "committed", index
		emit(told)
	}
	return event{"appends": len(started), "batches": len(batches)}, nil
}
