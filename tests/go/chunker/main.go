// Command chunker writes streams in chunks and verifies their sums: one half of Gazette's example stream-sum,
// as it is, with an end. A sum that is wrong, or late by 40 seconds, ends it with an error.
package main

import (
	"context"
	"flag"
	"os"

	log "github.com/sirupsen/logrus"
	pb "go.gazette.dev/core/broker/protocol"
	stream_sum "go.gazette.dev/core/examples/stream-sum"
)

func main() {
	var cfg = new(stream_sum.ChunkerConfig)
	var broker = flag.String("broker", "", "endpoint of a broker")
	flag.IntVar(&cfg.Chunker.Streams, "streams", 10, "streams of each worker; -1: without end")
	flag.IntVar(&cfg.Chunker.Chunks, "chunks", 100, "chunks of a stream")
	flag.IntVar(&cfg.Chunker.Workers, "workers", 4, "workers")
	flag.Parse()

	cfg.Broker.Address = pb.Endpoint(*broker)
	pb.RegisterGRPCDispatcher("local")
	if err := stream_sum.GenerateAndVerifyStreams(context.Background(), cfg); err != nil {
		log.Fatal(err)
	}
	os.Exit(0)
}
