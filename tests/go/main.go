// Command goclient uses Gazette's Go client package, for tests and benchmarks of what is not Go.
//
//	goclient MODE --broker http://host:port --journal NAME [flags]
//
// Every mode prints JSON objects, one a line, the last of them with "event": "end". A mode that
// fails puts the error's text into "error" and exits with 1. Modes that may wait for ever
// (reading with --block, watch) end when standard input does.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"time"

	"go.gazette.dev/core/broker/client"
	pb "go.gazette.dev/core/broker/protocol"
	mbp "go.gazette.dev/core/mainboilerplate"
)

// event is a line of output.
type event map[string]any

func emit(e event) {
	if err := json.NewEncoder(os.Stdout).Encode(e); err != nil {
		os.Exit(2) // Nobody reads any more.
	}
}

// mode runs until it is done or `ctx` is; it returns the fields of its last event.
type mode struct {
	about string
	run   func(ctx context.Context, o *options, rjc pb.RoutedJournalClient) (event, error)
	// offline is true if the mode needs no broker.
	offline bool
	// endless is true if only the end of standard input ends the mode.
	endless bool
}

var modes = map[string]mode{
	"reader":         {about: "read by a Reader: one Read RPC", run: runReader},
	"retry-reader":   {about: "read by a RetryReader", run: runRetryReader},
	"appender":       {about: "append standard input by an Appender", run: runAppender},
	"append":         {about: "append standard input by Append, which retries", run: runAppend},
	"append-service": {about: "append the orders of standard input by an AppendService", run: runAppendService},
	"watch":          {about: "print each update of a WatchedList", run: runWatch, endless: true},
	"publish":        {about: "carry out the orders of standard input by Publishers", run: runPublish},
	"sequence":       {about: "run the cases of standard input by a Sequencer", run: runSequence, offline: true},
	"consume":        {about: "run a consumer, and print where it serves its shards", run: runConsume, endless: true},
	"bench-read":     {about: "read to nowhere and print MB/s", run: runBenchRead},
	"bench-append":   {about: "append and print MB/s", run: runBenchAppend},
	"bench-service":  {about: "append small records by an AppendService and print records/s", run: runBenchService},
	"bench-publish":  {about: "publish documents by a Publisher and print messages/s", run: runBenchPublish},
	"read-committed": {about: "print the committed messages up to the write head", run: runReadCommitted},
	"replay":         {about: "rebuild files from the recovery log of the hints on standard input", run: runReplay},
	"record":         {about: "replay, take the log over, and record the orders that follow", run: runRecord},
	"json-store":     {about: "replay, and commit the orders that follow to a JSONFileStore", run: runJSONStore},
}

type options struct {
	client mbp.ClientConfig

	journal      string
	selector     string
	fileRoot     string
	zone         string
	etcd         string
	sums         string
	prefix       string
	id           string
	lease        time.Duration
	offset       int64
	endOffset    int64
	beginModTime int64
	block        bool
	doNotProxy   bool

	checkRegisters    string
	unionRegisters    string
	subtractRegisters string

	size       int64
	appendSize int
	recordSize int
	bufferSize int
	ringSize   int
}

func parse(name string, args []string) (*options, error) {
	var o options
	var address string
	var f = flag.NewFlagSet("goclient "+name, flag.ContinueOnError)
	f.StringVar(&address, "broker", "", "endpoint of a broker")
	f.StringVar(&o.client.AuthKeys, "auth-keys", "", "base64 keys to sign tokens with")
	f.StringVar(&o.client.TrustedCAFile, "ca-file", "", "certificates to trust")
	f.StringVar(&o.client.CertFile, "cert-file", "", "client certificate")
	f.StringVar(&o.client.CertKeyFile, "key-file", "", "key of the client certificate")
	f.IntVar(&o.client.Cache.Size, "cache-size", 0, "routes to remember; 0: brokers proxy")
	f.DurationVar(&o.client.Cache.TTL, "cache-ttl", 60e9, "how long routes are remembered")
	f.StringVar(&o.zone, "zone", "local", "zone of this process")
	f.StringVar(&o.etcd, "etcd", "", "URL of the Etcd that a consumer uses")
	f.StringVar(&o.sums, "sums", "", "journal that a consumer publishes sums of streams to")
	f.StringVar(&o.prefix, "prefix", "", "prefix of the keys of a consumer; by default one of its own")
	f.StringVar(&o.id, "id", "consumer", "name of a consumer among the members")
	f.DurationVar(&o.lease, "lease", 60e9, "how long a consumer's lease lasts")
	f.StringVar(&o.journal, "journal", "", "name of the journal")
	f.StringVar(&o.selector, "selector", "", "selector of the journals to watch")
	f.StringVar(&o.fileRoot, "file-root", "", "folder of file:// stores, to read fragments directly")
	f.Int64Var(&o.offset, "offset", 0, "first byte to read, or offset to append at")
	f.Int64Var(&o.endOffset, "end-offset", 0, "where to stop reading")
	f.Int64Var(&o.beginModTime, "begin-mod-time", 0, "skip fragments persisted before")
	f.BoolVar(&o.block, "block", false, "wait for more at the write head")
	f.BoolVar(&o.doNotProxy, "do-not-proxy", false, "read fragments directly, and from members only")
	f.StringVar(&o.checkRegisters, "check-registers", "", "selector the registers have to match")
	f.StringVar(&o.unionRegisters, "union-registers", "", "registers to set, as name=value,...")
	f.StringVar(&o.subtractRegisters, "subtract-registers", "", "registers to remove, as name=value,...")
	f.Int64Var(&o.size, "size", 1e9, "bytes to append")
	f.IntVar(&o.appendSize, "append-size", 16<<20, "bytes of one append")
	f.IntVar(&o.recordSize, "record-size", 200, "bytes of one small record")
	f.IntVar(&o.bufferSize, "buffer-size", 1<<17, "bytes to read at once")
	f.IntVar(&o.ringSize, "ring-size", 8192, "messages that a Sequencer keeps for their commit")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if modes[name].offline && address == "" {
		return &o, nil
	}
	o.client.Address = pb.Endpoint(address)
	return &o, o.client.Address.Validate()
}

func (o *options) readRequest() pb.ReadRequest {
	return pb.ReadRequest{
		Journal:      pb.Journal(o.journal),
		Offset:       o.offset,
		EndOffset:    o.endOffset,
		Block:        o.block,
		DoNotProxy:   o.doNotProxy,
		BeginModTime: o.beginModTime,
	}
}

func (o *options) appendRequest() (pb.AppendRequest, error) {
	var request = pb.AppendRequest{Journal: pb.Journal(o.journal), Offset: o.offset}
	if o.checkRegisters != "" {
		var selector, err = pb.ParseLabelSelector(o.checkRegisters)
		if err != nil {
			return request, err
		}
		request.CheckRegisters = &selector
	}
	request.UnionRegisters = labelSet(o.unionRegisters)
	request.SubtractRegisters = labelSet(o.subtractRegisters)
	return request, request.Validate()
}

func labelSet(text string) *pb.LabelSet {
	if text == "" {
		return nil
	}
	var set = new(pb.LabelSet)
	for _, term := range strings.Split(text, ",") {
		var name, value, _ = strings.Cut(term, "=")
		set.AddValue(name, value)
	}
	return set
}

// untilInputEnds returns a context that is cancelled with the end of standard input.
func untilInputEnds(ctx context.Context) context.Context {
	var ending, cancel = context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return ending
}

func usage() {
	var names []string
	for name := range modes {
		names = append(names, name)
	}
	sort.Strings(names)
	fmt.Fprintln(os.Stderr, "usage: goclient MODE --broker ENDPOINT [flags]; modes:")
	for _, name := range names {
		fmt.Fprintf(os.Stderr, "  %-15s %s\n", name, modes[name].about)
	}
	os.Exit(2)
}

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	var chosen, ok = modes[os.Args[1]]
	if !ok {
		usage()
	}
	var o, err = parse(os.Args[1], os.Args[2:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if o.fileRoot != "" {
		defer client.InstallFileTransport(o.fileRoot)()
	}
	pb.RegisterGRPCDispatcher(o.zone)

	var ctx, cancel = context.WithCancel(context.Background())
	defer cancel()
	var rjc pb.RoutedJournalClient
	if !chosen.offline {
		rjc = o.client.MustRoutedJournalClient(ctx)
	}
	var until = ctx
	if chosen.endless || o.block {
		until = untilInputEnds(ctx)
	}
	end, err := chosen.run(until, o, rjc)
	if end == nil {
		end = event{}
	}
	end["event"] = "end"
	if err != nil {
		end["error"] = err.Error()
	}
	emit(end)
	if err != nil {
		os.Exit(1)
	}
}
