package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/afero"
	"go.gazette.dev/core/broker/client"
	pb "go.gazette.dev/core/broker/protocol"
	"go.gazette.dev/core/consumer"
	pc "go.gazette.dev/core/consumer/protocol"
	"go.gazette.dev/core/consumer/recoverylog"
)

// recoveryOrder is a file operation of mode record, or a transaction of mode json-store.
type recoveryOrder struct {
	// Do is "create", "write", "rename", "link" or "remove".
	Do      string
	Path    string
	Target  string
	Offset  int64
	Content []byte

	State      any
	Checkpoint pc.Checkpoint
}

// replay plays the hints that come first on standard input, into a new directory.
func replay(
	ctx context.Context, orders *json.Decoder, rjc pb.RoutedJournalClient, author recoverylog.Author,
) (*recoverylog.Player, client.AsyncJournalClient, error) {
	var hints recoverylog.FSMHints
	if err := orders.Decode(&hints); err != nil {
		return nil, nil, err
	}
	var dir, err = os.MkdirTemp("", "goclient-recovery-")
	if err != nil {
		return nil, nil, err
	}
	var service = client.NewAppendService(ctx, rjc)
	var player = recoverylog.NewPlayer()
	if author == 0 {
		player.FinishAtWriteHead()
	} else {
		player.InjectHandoff(author)
	}
	return player, service, player.Play(ctx, hints, dir, service)
}

// recovered tells of a directory's files, and how to get them again.
func recovered(player *recoverylog.Player) (event, error) {
	var dir, fsm = player.Resolved.Dir, player.Resolved.FSM
	var files = make(map[string][]byte)
	var err = filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		files[name], err = os.ReadFile(path)
		return err
	})
	return event{
		"files": files, "hints": fsm.BuildHints(fsm.LastLog),
		"next_seq_no": fsm.NextSeqNo, "next_checksum": fsm.NextChecksum,
	}, err
}

// runReplay plays hints to the write head of their log.
func runReplay(ctx context.Context, _ *options, rjc pb.RoutedJournalClient) (event, error) {
	var player, _, err = replay(ctx, json.NewDecoder(os.Stdin), rjc, 0)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(player.Resolved.Dir)
	return recovered(player)
}

// recording plays hints, takes their log over, and hands each order that follows to `carryOut`.
func recording(
	ctx context.Context, rjc pb.RoutedJournalClient,
	begin func(*recoverylog.Recorder) (event, error), carryOut func(recoveryOrder) error,
) (event, error) {
	var orders = json.NewDecoder(os.Stdin)
	var author = recoverylog.NewRandomAuthor()
	var player, service, err = replay(ctx, orders, rjc, author)
	if err != nil {
		return nil, err
	}
	var dir = player.Resolved.Dir
	defer os.RemoveAll(dir)
	var recorder = recoverylog.NewRecorder(player.Resolved.Log, player.Resolved.FSM, author, dir, service)
	began, err := begin(recorder)
	if err != nil {
		return nil, err
	}
	began["event"] = "recording"
	emit(began)
	for {
		var order recoveryOrder
		if err = orders.Decode(&order); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		} else if err = carryOut(order); err != nil {
			return nil, err
		}
	}
	if _, err = recorder.BuildHints(); err != nil {
		return nil, err
	}
	return recovered(player)
}

// runRecord carries out file operations.
func runRecord(ctx context.Context, _ *options, rjc pb.RoutedJournalClient) (event, error) {
	var fs afero.Fs
	var dir string
	return recording(ctx, rjc, func(recorder *recoverylog.Recorder) (event, error) {
		fs, dir = recoverylog.RecordedAferoFS{Recorder: recorder, Fs: afero.NewOsFs()}, recorder.Dir()
		return event{}, nil
	}, func(order recoveryOrder) error {
		var path, target = filepath.Join(dir, order.Path), filepath.Join(dir, order.Target)
		switch order.Do {
		case "create", "write":
			var flags = os.O_RDWR
			if order.Do == "create" {
				flags |= os.O_CREATE | os.O_TRUNC
			}
			var file, err = fs.OpenFile(path, flags, 0600)
			if err != nil {
				return err
			} else if _, err = file.Seek(order.Offset, io.SeekStart); err != nil {
				return err
			} else if _, err = file.Write(order.Content); err != nil {
				return err
			}
			return file.Close()
		case "rename":
			return fs.Rename(path, target)
		case "link":
			if err := os.Link(path, target); err != nil {
				return err
			}
			fs.(recoverylog.RecordedAferoFS).RecordLink(path, target)
			return nil
		default:
			return fs.Remove(path)
		}
	})
}

// runJSONStore commits the orders' states and checkpoints to a JSONFileStore.
func runJSONStore(ctx context.Context, _ *options, rjc pb.RoutedJournalClient) (event, error) {
	var store *consumer.JSONFileStore
	return recording(ctx, rjc, func(recorder *recoverylog.Recorder) (event, error) {
		var state any
		var err error
		if store, err = consumer.NewJSONFileStore(recorder, &state); err != nil {
			return nil, err
		}
		checkpoint, err := store.RestoreCheckpoint(nil)
		return event{"state": state, "checkpoint": checkpoint}, err
	}, func(order recoveryOrder) error {
		store.State = order.State
		return store.StartCommit(nil, order.Checkpoint, nil).Err()
	})
}
