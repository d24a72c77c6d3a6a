package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sort"
	"time"

	"github.com/google/uuid"
	log "github.com/sirupsen/logrus"
	pb "go.gazette.dev/core/broker/protocol"
	"go.gazette.dev/core/message"
)

// stamp is a message that is its UUID.
type stamp struct{ id message.UUID }

func (s *stamp) GetUUID() message.UUID                         { return s.id }
func (s *stamp) SetUUID(id message.UUID)                       { s.id = id }
func (s *stamp) NewAcknowledgement(pb.Journal) message.Message { return new(stamp) }

// sequenceCase is a history, and how a Sequencer reads it.
type sequenceCase struct {
	Ring     int
	Messages []struct {
		Journal    pb.Journal
		Begin, End int64
		UUID       string
	}
	Stops []sequenceStop
}

// sequenceStop is what happens after a number of messages was queued.
type sequenceStop struct {
	Queued    int
	Deliver   int
	HorizonNs int64
	Ring      int // Of the Sequencer that goes on from the checkpoint; 0: the same goes on.
}

// sequenceRun is a case under way.
type sequenceRun struct {
	seq     *message.Sequencer
	history []message.Envelope
	trace   []string
}

// runSequence reads cases, one a line, and prints the trace of each.
func runSequence(context.Context, *options, pb.RoutedJournalClient) (event, error) {
	log.SetOutput(io.Discard) // A Sequencer logs what is odd, and most cases are.
	var cases int
	var lines = bufio.NewReaderSize(os.Stdin, 1<<20)
	for decoder := json.NewDecoder(lines); ; cases++ {
		var c sequenceCase
		if err := decoder.Decode(&c); err == io.EOF {
			return event{"cases": cases}, nil
		} else if err != nil {
			return nil, err
		}
		var run, err = newSequenceRun(c)
		if err == nil {
			err = run.toEnd(c.Stops)
		}
		if err != nil {
			return nil, fmt.Errorf("case %d: %w", cases, err)
		}
		emit(event{"event": "trace", "trace": run.trace})
	}
}

func newSequenceRun(c sequenceCase) (*sequenceRun, error) {
	var specs = make(map[pb.Journal]*pb.JournalSpec)
	var run = &sequenceRun{seq: message.NewSequencer(nil, nil, c.Ring), trace: []string{}}
	for _, m := range c.Messages {
		var id, err = uuid.Parse(m.UUID)
		if err != nil {
			return nil, err
		}
		if specs[m.Journal] == nil {
			specs[m.Journal] = &pb.JournalSpec{Name: m.Journal}
		}
		run.history = append(run.history, message.Envelope{
			Journal: specs[m.Journal],
			Begin:   m.Begin,
			End:     m.End,
			Message: &stamp{id},
		})
	}
	return run, nil
}

func (r *sequenceRun) say(format string, args ...any) {
	r.trace = append(r.trace, fmt.Sprintf(format, args...))
}

func (r *sequenceRun) toEnd(stops []sequenceStop) error {
	var offsets pb.Offsets
	var queued int
	for at := 0; at < len(r.history); {
		var env = r.history[at]
		at++
		if env.Begin < offsets[env.Journal.Name] {
			continue // Read before a restart.
		}
		queued++
		r.queue(env)
		for _, stop := range stops {
			if stop.Queued != queued {
				continue
			}
			if err := r.deliver(stop.Deliver); err != nil {
				return err
			}
			if restored := r.checkpoint(stop); stop.Ring != 0 {
				offsets, at = restored, 0
			}
		}
		// A Sequencer made of a checkpoint has nothing to deliver.
		if err := r.deliver(-1); err != nil {
			return err
		}
	}
	r.checkpoint(sequenceStop{})
	return nil
}

func (r *sequenceRun) queue(env message.Envelope) {
	var outcome = r.seq.QueueUncommitted(env)
	r.say("queue %s", outcome)
	if outcome != message.QueueAckCommitReplay {
		return
	}
	var journal, begin, end = r.seq.ReplayRange()
	r.say("replay %s %d %d", journal, begin, end)
	var rest = r.history
	r.seq.StartReplay(message.IteratorFunc(func() (message.Envelope, error) {
		for len(rest) != 0 {
			var next = rest[0]
			rest = rest[1:]
			if next.Journal.Name == journal && begin <= next.Begin && next.End <= end {
				return next, nil
			}
		}
		return message.Envelope{}, io.EOF
	}))
}

func (r *sequenceRun) deliver(most int) error {
	for ; most != 0; most-- {
		if err := r.seq.Step(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		var env = r.seq.Dequeued
		r.say("message %s %d %d %s", env.Journal.Name, env.Begin, env.End, uuid.UUID(env.GetUUID()))
	}
	return nil
}

func (r *sequenceRun) checkpoint(stop sequenceStop) pb.Offsets {
	var pending = "no"
	if r.seq.HasPending() {
		pending = "yes"
	}
	r.say("pending %s", pending)
	var offsets, states = r.seq.Checkpoint(time.Duration(stop.HorizonNs))
	var restored = make(pb.Offsets, len(offsets))
	var lines []string
	for journal, offset := range offsets {
		restored[journal] = offset
		lines = append(lines, fmt.Sprintf("offset %s %d", journal, offset))
	}
	sort.Strings(lines)
	r.trace = append(r.trace, lines...)

	sort.Slice(states, func(i, j int) bool {
		var a, b = states[i], states[j]
		if a.Journal != b.Journal {
			return a.Journal < b.Journal
		}
		return string(a.Producer[:]) < string(b.Producer[:])
	})
	for _, s := range states {
		r.say("state %s %x %d %d", s.Journal, s.Producer[:], s.LastAck, s.Begin)
	}
	if stop.Ring != 0 {
		r.seq = message.NewSequencer(offsets, states, stop.Ring)
	}
	return restored
}
