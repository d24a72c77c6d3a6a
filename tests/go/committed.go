package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.gazette.dev/core/broker/client"
	pb "go.gazette.dev/core/broker/protocol"
	"go.gazette.dev/core/labels"
	"go.gazette.dev/core/message"
	"google.golang.org/protobuf/encoding/protowire"
)

// runReadCommitted prints the committed messages up to the write head, acknowledgements among them.
// The documents of JSON keep their UUID at /_meta/uuid, records of CSV in the first column, protobuf
// messages in field 1.
func runReadCommitted(ctx context.Context, o *options, rjc pb.RoutedJournalClient) (event, error) {
	var reader = client.NewRetryReader(ctx, rjc, o.readRequest())
	var sequencer = message.NewSequencer(nil, nil, o.ringSize)
	var it = message.NewReadCommittedIter(reader, newReadable, sequencer)
	var messages, acks int
	for {
		var env, err = it.Next()
		if errors.Is(err, client.ErrOffsetNotYetAvailable) {
			return event{"messages": messages, "acks": acks, "open": openSequences(sequencer)}, nil
		} else if err != nil {
			return nil, err
		}
		var uuid = env.GetUUID()
		var flags = message.GetFlags(uuid)
		if flags == message.Flag_ACK_TXN {
			acks++
		} else {
			messages++
		}
		emit(event{
			"event": "message",
			"begin": env.Begin,
			"end":   env.End,
			"uuid":  uuid.String(),
			"clock": fmt.Sprint(uint64(message.GetClock(uuid))), // JSON's numbers are too small.
			"flags": flags,
			"value": env.Message.(fmt.Stringer).String(),
		})
	}
}

// openSequences returns how many producers have messages that are neither committed nor rolled back.
func openSequences(sequencer *message.Sequencer) int {
	var open int
	var _, states = sequencer.Checkpoint(0)
	for _, state := range states {
		if state.Begin != -1 {
			open++
		}
	}
	return open
}

// newReadable returns a message of a journal's content type.
func newReadable(spec *pb.JournalSpec) (message.Message, error) {
	switch found := spec.LabelSet.ValueOf(labels.ContentType); found {
	case labels.ContentType_JSONLines:
		return new(anyDocument), nil
	case labels.ContentType_CSV:
		return new(anyRecord), nil
	case labels.ContentType_ProtoFixed:
		return new(anyProto), nil
	default:
		return nil, fmt.Errorf("no message of content type %q", found)
	}
}

// anyDocument is a JSON document with a UUID at /_meta/uuid.
type anyDocument struct {
	uuid message.UUID
	text string
}

func (d *anyDocument) UnmarshalJSON(data []byte) error {
	var found struct {
		Meta struct {
			UUID message.UUID `json:"uuid"`
		} `json:"_meta"`
	}
	if err := json.Unmarshal(data, &found); err != nil {
		return err
	}
	d.uuid, d.text = found.Meta.UUID, string(bytes.TrimSuffix(data, []byte{'\n'}))
	return nil
}

func (d *anyDocument) GetUUID() message.UUID                         { return d.uuid }
func (d *anyDocument) SetUUID(uuid message.UUID)                     { d.uuid = uuid }
func (d *anyDocument) NewAcknowledgement(pb.Journal) message.Message { return new(anyDocument) }
func (d *anyDocument) String() string                                { return d.text }

// anyRecord is a record of CSV with a UUID in its first column.
type anyRecord struct{ message.CSVRecord }

func (r *anyRecord) String() string { return fmt.Sprintf("%q", []string(r.CSVRecord)) }

// anyProto is a protobuf message whose field 1 is a UUID; the last one counts, as protobuf has it.
type anyProto struct {
	uuid message.UUID
	data []byte
}

func (p *anyProto) Unmarshal(data []byte) error {
	p.data = bytes.Clone(data)
	for len(data) != 0 {
		var number, kind, n = protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		if n = protowire.ConsumeFieldValue(number, kind, data); n < 0 {
			return protowire.ParseError(n)
		}
		if number == 1 && kind == protowire.BytesType {
			var value, _ = protowire.ConsumeBytes(data)
			if copy(p.uuid[:], value) != len(p.uuid) {
				return fmt.Errorf("field 1 holds %d bytes, not a UUID", len(value))
			}
		}
		data = data[n:]
	}
	return nil
}

func (p *anyProto) ProtoSize() int                                { return len(p.data) }
func (p *anyProto) MarshalTo(to []byte) (int, error)              { return copy(to, p.data), nil }
func (p *anyProto) GetUUID() message.UUID                         { return p.uuid }
func (p *anyProto) SetUUID(uuid message.UUID)                     { p.uuid = uuid }
func (p *anyProto) NewAcknowledgement(pb.Journal) message.Message { return new(anyProto) }
func (p *anyProto) String() string                                { return hex.EncodeToString(p.data) }

// benchDocument is what runBenchPublish writes.
type benchDocument struct {
	Meta struct {
		UUID message.UUID `json:"uuid"`
	} `json:"_meta"`
	Number int64  `json:"number"`
	Text   string `json:"text"`
}

func (d *benchDocument) GetUUID() message.UUID                         { return d.Meta.UUID }
func (d *benchDocument) SetUUID(uuid message.UUID)                     { d.Meta.UUID = uuid }
func (d *benchDocument) NewAcknowledgement(pb.Journal) message.Message { return new(benchDocument) }

// runBenchPublish publishes numbered documents as one transaction, and commits it.
func runBenchPublish(ctx context.Context, o *options, rjc pb.RoutedJournalClient) (event, error) {
	var service = client.NewAppendService(ctx, rjc)
	var publisher = message.NewPublisher(service, nil)
	var mapping = func(message.Mappable) (pb.Journal, string, error) {
		return pb.Journal(o.journal), labels.ContentType_JSONLines, nil
	}
	var messages = o.size / int64(o.recordSize)
	var text = string(bytes.Repeat([]byte{'.'}, o.recordSize))
	var began = time.Now()
	for number := int64(0); number != messages; number++ {
		var document = &benchDocument{Number: number, Text: text}
		if _, err := publisher.PublishUncommitted(mapping, document); err != nil {
			return nil, err
		}
	}
	intents, err := publisher.BuildAckIntents()
	if err != nil {
		return nil, err
	}
	for _, intent := range intents {
		var op = service.StartAppend(pb.AppendRequest{Journal: intent.Journal}, nil)
		_, _ = op.Writer().Write(intent.Intent)
		if err = op.Release(); err != nil {
			return nil, err
		}
	}
	for op := range service.PendingExcept("") {
		if err = op.Err(); err != nil {
			return nil, err
		}
	}
	var seconds = time.Since(began).Seconds()
	return event{"messages": messages, "seconds": seconds, "messages_per_s": float64(messages) / seconds}, nil
}
