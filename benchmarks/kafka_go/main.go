// Command kafka_go writes messages to a topic one by one, as the replicated log on Kafka does, and prints how long
// each took, in nanoseconds, as a JSON list.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/segmentio/kafka-go"
)

func main() {
	var server = flag.String("server", "127.0.0.1:9092", "address of a broker")
	var topic = flag.String("topic", "replicated-log", "topic of one partition; made if missing")
	var count = flag.Int("count", 1000, "messages to measure")
	var warmUp = flag.Int("warm-up", 100, "messages before these")
	var size = flag.Int("size", 200, "bytes of a message")
	flag.Parse()
	if err := run(*server, *topic, *warmUp, *count, *size); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(server, topic string, warmUp, count, size int) error {
	var ctx, cancel = context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var connection, err = kafka.Dial("tcp", server)
	if err != nil {
		return err
	}
	err = connection.CreateTopics(kafka.TopicConfig{Topic: topic, NumPartitions: 1, ReplicationFactor: 1})
	if err != nil && !errors.Is(err, kafka.TopicAlreadyExists) {
		return err
	}
	if err = connection.Close(); err != nil {
		return err
	}
	// A write returns when all replicas have it; by default it would wait a second for more messages.
	var writer = &kafka.Writer{
		Addr:         kafka.TCP(server),
		Topic:        topic,
		RequiredAcks: kafka.RequireAll,
		BatchSize:    1,
	}
	var value = bytes.Repeat([]byte("x"), size)
	var took []int64
	for number := 0; number < warmUp+count; number++ {
		var began = time.Now()
		if err = writer.WriteMessages(ctx, kafka.Message{Value: value}); err != nil {
			return err
		}
		if number >= warmUp {
			took = append(took, time.Since(began).Nanoseconds())
		}
	}
	if err = writer.Close(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(took)
}
