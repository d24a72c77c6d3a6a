package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"go.gazette.dev/core/broker/client"
	pb "go.gazette.dev/core/broker/protocol"
	"go.gazette.dev/core/labels"
	"go.gazette.dev/core/message"
	"google.golang.org/protobuf/encoding/protowire"
)

// publishOrder is something a named publisher does.
type publishOrder struct {
	Publisher string
	// Do is "committed" or "uncommitted", to publish a number; "acknowledge", to commit what is uncommitted;
	// "repeat", to append the last acknowledgements again; "forget", to go on as another producer.
	Do     string
	Number uint64
}

// publisherState is a publisher, and the acknowledgements it built last.
type publisherState struct {
	*message.Publisher
	intents []message.AckIntent
}

// runPublish carries out the orders of standard input, one after the other.
func runPublish(ctx context.Context, o *options, rjc pb.RoutedJournalClient) (event, error) {
	var spec, err = client.GetJournal(ctx, rjc, pb.Journal(o.journal))
	if err != nil {
		return nil, err
	}
	var contentType = spec.LabelSet.ValueOf(labels.ContentType)
	var mapping = func(message.Mappable) (pb.Journal, string, error) {
		return pb.Journal(o.journal), contentType, nil
	}
	var service = client.NewAppendService(ctx, rjc)
	var publishers = make(map[string]*publisherState)
	var orders int
	for decoder := json.NewDecoder(os.Stdin); ; orders++ {
		var order publishOrder
		if err = decoder.Decode(&order); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		var p = publishers[order.Publisher]
		if p == nil {
			p = &publisherState{Publisher: message.NewPublisher(service, nil)}
			publishers[order.Publisher] = p
		}
		switch order.Do {
		case "committed":
			_, err = p.PublishCommitted(mapping, newNumbered(contentType, order.Number))
		case "uncommitted":
			_, err = p.PublishUncommitted(mapping, newNumbered(contentType, order.Number))
		case "acknowledge":
			if p.intents, err = p.BuildAckIntents(); err == nil {
				err = p.append(service)
			}
		case "repeat":
			err = p.append(service)
		case "forget":
			delete(publishers, order.Publisher)
		default:
			err = fmt.Errorf("unknown order %q", order.Do)
		}
		if err != nil {
			return nil, err
		}
	}
	for op := range service.PendingExcept("") {
		if err = op.Err(); err != nil {
			return nil, err
		}
	}
	return event{"orders": orders}, nil
}

// append appends the acknowledgements that were built last.
func (p *publisherState) append(service *client.AppendService) error {
	for _, intent := range p.intents {
		var op = service.StartAppend(pb.AppendRequest{Journal: intent.Journal}, nil)
		_, _ = op.Writer().Write(intent.Intent)
		if err := op.Release(); err != nil {
			return err
		}
	}
	return nil
}

func newNumbered(contentType string, number uint64) message.Message {
	if contentType == labels.ContentType_ProtoFixed {
		return &numberedProto{number: number}
	}
	return &numberedDocument{Number: number}
}

// numberedDocument is a JSON document with a UUID at /_meta/uuid.
type numberedDocument struct {
	Meta struct {
		UUID message.UUID `json:"uuid"`
	} `json:"_meta"`
	Number uint64 `json:"number,omitempty"`
}

func (d *numberedDocument) GetUUID() message.UUID     { return d.Meta.UUID }
func (d *numberedDocument) SetUUID(uuid message.UUID) { d.Meta.UUID = uuid }
func (d *numberedDocument) NewAcknowledgement(pb.Journal) message.Message {
	return new(numberedDocument)
}

// numberedProto is a protobuf message with a UUID in field 1.
type numberedProto struct {
	uuid   message.UUID
	number uint64
}

func (p *numberedProto) bytes() []byte {
	var data = protowire.AppendTag(nil, 1, protowire.BytesType)
	data = protowire.AppendBytes(data, p.uuid[:])
	if p.number != 0 {
		data = protowire.AppendTag(data, 2, protowire.VarintType)
		data = protowire.AppendVarint(data, p.number)
	}
	return data
}

func (p *numberedProto) ProtoSize() int                                { return len(p.bytes()) }
func (p *numberedProto) MarshalTo(to []byte) (int, error)              { return copy(to, p.bytes()), nil }
func (p *numberedProto) Unmarshal([]byte) error                        { return nil }
func (p *numberedProto) GetUUID() message.UUID                         { return p.uuid }
func (p *numberedProto) SetUUID(uuid message.UUID)                     { p.uuid = uuid }
func (p *numberedProto) NewAcknowledgement(pb.Journal) message.Message { return new(numberedProto) }
