// Load on a JetStream stream with three replicas, for `make cluster-compare`. One connection publishes over many subjects, with a window
// of messages without their acknowledgement, or at a steady rate. Another one consumes. It prints one object of JSON.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

type sent struct {
	ack nats.PubAckFuture
	at  time.Time
}

func fail(what string, err error) {
	fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
	os.Exit(1)
}

func main() {
	servers := flag.String("servers", "", "tls://host:port, with commas")
	ca := flag.String("ca", "", "PEM")
	certificate := flag.String("cert", "", "PEM")
	key := flag.String("key", "", "PEM")
	seconds := flag.Float64("seconds", 5, "measured")
	warmUp := flag.Float64("warm-up", 1, "before")
	topics := flag.Int("topics", 1000, "subjects")
	window := flag.Int("window", 1000, "messages without acknowledgement")
	rate := flag.Float64("rate", 0, "messages per second, 0 for the maximum")
	size := flag.Int("bytes", 120, "of a body")
	flag.Parse()
	options := []nats.Option{nats.RootCAs(*ca), nats.ClientCert(*certificate, *key), nats.MaxReconnects(-1)}
	connect := func() nats.JetStreamContext {
		connection, err := nats.Connect(*servers, options...)
		if err != nil {
			fail("connect", err)
		}
		stream, err := connection.JetStream(nats.PublishAsyncMaxPending(*window), nats.MaxWait(30*time.Second))
		if err != nil {
			fail("JetStream", err)
		}
		return stream
	}
	publisher, subscriber := connect(), connect()
	config := &nats.StreamConfig{Name: "bench", Subjects: []string{"X.>"}, Replicas: 3, Storage: nats.FileStorage}
	for try := 0; ; try++ { // the nodes elect a leader of their metadata first
		if _, err := publisher.AddStream(config); err == nil {
			break
		} else if try == 200 {
			fail("the stream cannot be made", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	var received, broken atomic.Int64
	if _, err := subscriber.Subscribe("X.>", func(*nats.Msg) { received.Add(1) }, nats.OrderedConsumer()); err != nil {
		fail("subscribe", err)
	}
	subjects := make([]string, *topics)
	for number := range subjects {
		subjects[number] = fmt.Sprintf("X.EGM.Q.%06d.EGMMeterReading", number)
	}
	body := make([]byte, *size)
	for number := range body {
		body[number] = byte('a' + number%26)
	}
	begin := time.Now().Add(time.Duration(*warmUp * float64(time.Second)))
	end := begin.Add(time.Duration(*seconds * float64(time.Second)))
	pending := make(chan sent, 1<<20)
	done := make(chan struct{})
	latencies := make([]float64, 0, 1<<20)
	measured := 0
	go func() {
		for one := range pending {
			select {
			case <-one.ack.Ok():
				if now := time.Now(); now.After(begin) && now.Before(end) {
					measured++
					latencies = append(latencies, float64(now.Sub(one.at))/1e6)
				}
			case <-one.ack.Err():
				broken.Add(1)
			}
		}
		close(done)
	}()
	published := int64(0)
	start := time.Now()
	for now := start; now.Before(end); now = time.Now() {
		at := now
		if *rate > 0 {
			at = start.Add(time.Duration(float64(published) / *rate * float64(time.Second)))
			time.Sleep(time.Until(at))
		}
		ack, err := publisher.PublishAsync(subjects[published%int64(len(subjects))], body)
		if err != nil {
			broken.Add(1)
			continue
		}
		published++
		pending <- sent{ack, at}
	}
	close(pending)
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		fail("acknowledgements", fmt.Errorf("some did not come within 30 s"))
	}
	for patience := 0; received.Load() < published && patience < 300; patience++ {
		time.Sleep(100 * time.Millisecond)
	}
	sort.Float64s(latencies)
	quantile := func(share float64) float64 {
		if len(latencies) == 0 {
			return 0
		}
		return latencies[min(len(latencies)-1, int(share*float64(len(latencies))))]
	}
	json.NewEncoder(os.Stdout).Encode(map[string]any{
		"sends_per_s": float64(measured) / *seconds, "p50_ms": quantile(0.5), "p99_ms": quantile(0.99),
		"published": published, "received": received.Load(), "failed": broken.Load(),
	})
}
