package main

import (
	"encoding/hex"
	"fmt"
	"hash/crc64"

	pb "go.gazette.dev/core/broker/protocol"
	"go.gazette.dev/core/consumer"
	"go.gazette.dev/core/consumer/recoverylog"
	"go.gazette.dev/core/labels"
	"go.gazette.dev/core/message"
)

// chunk is a part of a stream, as in Gazette's example stream-sum; the last one has no data.
type chunk struct {
	UUID  message.UUID
	ID    [16]byte
	SeqNo int
	Data  []byte
}

func (c *chunk) GetUUID() message.UUID                         { return c.UUID }
func (c *chunk) SetUUID(uuid message.UUID)                     { c.UUID = uuid }
func (c *chunk) NewAcknowledgement(pb.Journal) message.Message { return new(chunk) }

// sum is the CRC-64 of a whole stream.
type sum struct {
	UUID  message.UUID
	ID    [16]byte
	SeqNo int
	Value uint64
}

func (s *sum) GetUUID() message.UUID                         { return s.UUID }
func (s *sum) SetUUID(uuid message.UUID)                     { s.UUID = uuid }
func (s *sum) NewAcknowledgement(pb.Journal) message.Message { return new(sum) }

// partial is what is kept of an open stream, its number of chunks and their sum, in JSON as the Python example has it.
type partial [2]uint64

// streamSum does what the Python example of this name does: it keeps the open streams in a JSONFileStore, and
// publishes the sums of those that end. A chunk out of order fails the shard.
type streamSum struct{ sums pb.Journal }

var ecma = crc64.MakeTable(crc64.ECMA)

func (streamSum) NewStore(_ consumer.Shard, recorder *recoverylog.Recorder) (consumer.Store, error) {
	var open = make(map[string]partial)
	return consumer.NewJSONFileStore(recorder, &open)
}

func (streamSum) NewMessage(*pb.JournalSpec) (message.Message, error) { return new(chunk), nil }

func (app streamSum) ConsumeMessage(_ consumer.Shard, store consumer.Store, env message.Envelope, pub *message.Publisher) error {
	var c = env.Message.(*chunk)
	if message.GetFlags(c.UUID) == message.Flag_ACK_TXN {
		return nil
	}
	var open = *store.(*consumer.JSONFileStore).State.(*map[string]partial)
	var stream = hex.EncodeToString(c.ID[:])
	var before = open[stream]
	if uint64(c.SeqNo) != before[0]+1 {
		return fmt.Errorf("stream %s: chunk %d came after chunk %d", stream, c.SeqNo, before[0])
	}
	if len(c.Data) != 0 {
		open[stream] = partial{uint64(c.SeqNo), crc64.Update(before[1], ecma, c.Data)}
		return nil
	}
	delete(open, stream)
	var to = func(message.Mappable) (pb.Journal, string, error) { return app.sums, labels.ContentType_JSONLines, nil }
	var _, err = pub.PublishUncommitted(to, &sum{ID: c.ID, SeqNo: c.SeqNo, Value: before[1]})
	return err
}

func (streamSum) FinalizeTxn(consumer.Shard, consumer.Store, *message.Publisher) error { return nil }
