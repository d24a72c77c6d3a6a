package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.gazette.dev/core/allocator"
	"go.gazette.dev/core/auth"
	"go.gazette.dev/core/broker/client"
	pb "go.gazette.dev/core/broker/protocol"
	"go.gazette.dev/core/consumer"
	pc "go.gazette.dev/core/consumer/protocol"
	"go.gazette.dev/core/consumer/recoverylog"
	"go.gazette.dev/core/message"
	"go.gazette.dev/core/server"
	"go.gazette.dev/core/task"
)

// runConsume runs a consumer until standard input ends, or SIGTERM has it hand its shards over, and prints the
// endpoint of its service. It is alone, unless it has a prefix that others have, too. Its shards keep nothing,
// unless the consumer sums streams. A message in which "boom" is found fails its shard.
func runConsume(ctx context.Context, o *options, rjc pb.RoutedJournalClient) (event, error) {
	var etcd, err = clientv3.NewFromURL(o.etcd)
	if err != nil {
		return nil, err
	}
	keyed, err := auth.NewKeyedAuth(o.client.AuthKeys)
	if err != nil {
		return nil, err
	}
	srv, err := server.New("127.0.0.1", "127.0.0.1", "", nil, nil, 1<<22, nil)
	if err != nil {
		return nil, err
	}
	var app consumer.Application = forgetful{}
	if o.sums != "" {
		app = streamSum{sums: pb.Journal(o.sums)}
	}
	if o.prefix == "" {
		o.prefix = fmt.Sprintf("/goclient/%d", os.Getpid())
	}
	var signals = make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	var (
		id    = pb.ProcessSpec_ID{Zone: o.zone, Suffix: o.id}
		ks    = consumer.NewKeySpace(o.prefix)
		state = allocator.NewObservedState(ks, allocator.MemberKey(ks, id.Zone, id.Suffix), consumer.ShardIsConsistent)
		svc   = consumer.NewService(app, keyed, keyed, state, rjc, srv.GRPCLoopback, etcd)
		tasks = task.NewGroup(ctx)
	)
	if err = allocator.StartSession(allocator.SessionArgs{
		Etcd:     etcd,
		Tasks:    tasks,
		LeaseTTL: o.lease,
		SignalCh: signals,
		State:    state,
		Spec: &pc.ConsumerSpec{
			ProcessSpec: pb.ProcessSpec{Id: id, Endpoint: srv.Endpoint()},
			ShardLimit:  100,
		},
	}); err != nil {
		return nil, err
	}
	pc.RegisterShardServer(srv.GRPCServer, pc.NewVerifiedShardServer(svc, keyed))
	ks.WatchApplyDelay = 0
	srv.QueueTasks(tasks)
	svc.QueueTasks(tasks, srv)
	tasks.GoRun()
	emit(event{"event": "serving", "endpoint": srv.Endpoint()})
	return event{}, tasks.Wait()
}

// forgetful is an application whose shards read all again when they are assigned.
type forgetful struct{}

func (forgetful) NewStore(consumer.Shard, *recoverylog.Recorder) (consumer.Store, error) {
	return nothing{}, nil
}

func (forgetful) NewMessage(spec *pb.JournalSpec) (message.Message, error) { return newReadable(spec) }

func (forgetful) ConsumeMessage(_ consumer.Shard, _ consumer.Store, env message.Envelope, _ *message.Publisher) error {
	if bytes.Contains([]byte(env.Message.(fmt.Stringer).String()), []byte("boom")) {
		return fmt.Errorf("boom is no number")
	}
	return nil
}

func (forgetful) FinalizeTxn(consumer.Shard, consumer.Store, *message.Publisher) error { return nil }

type nothing struct{}

func (nothing) StartCommit(consumer.Shard, pc.Checkpoint, consumer.OpFutures) consumer.OpFuture {
	return client.FinishedOperation(nil)
}

func (nothing) RestoreCheckpoint(consumer.Shard) (pc.Checkpoint, error) { return pc.Checkpoint{}, nil }

func (nothing) Destroy() {}
