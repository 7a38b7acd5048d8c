// Publish lines "DESTINATION JSON" of standard input, and print each change of a glob, with go-stomp over mutual TLS.
// Usage: recipe HOST PORT CA CERTIFICATE KEY GLOB [POSITION-FILE]
// With a file for the position it continues by `since` in place of a durable subscription. The file has the topics too.
package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-stomp/stomp/v3"
	"github.com/go-stomp/stomp/v3/frame"
)

// The same CONNECT would get these again, or two programs would take the session from each other for ever.
var final = []string{"session taken over by a newer connection", "unknown host", "bad client-id"}

func main() {
	if len(os.Args) < 7 {
		fmt.Fprintln(os.Stderr, "usage: recipe HOST PORT CA CERTIFICATE KEY GLOB [POSITION-FILE]")
		os.Exit(2)
	}
	if len(os.Args) > 7 {
		resume = &Resume{file: os.Args[7], held: map[string]bool{}}
		resume.load()
	}
	lines := make(chan string)
	go func() {
		for input := bufio.NewScanner(os.Stdin); input.Scan(); {
			lines <- input.Text()
		}
		close(lines)
	}()
	for failures := 0; ; failures++ {
		conn, err := connect()
		if err == nil {
			fmt.Println("connected")
			failures = 0
			if err = run(conn, lines); err == nil {
				return
			}
			_ = conn.MustDisconnect()
		}
		if slices.Contains(final, err.Error()) {
			fmt.Println("closed", err)
			os.Exit(1)
		}
		fmt.Println("lost", err)
		time.Sleep(rand.N(min(30*time.Second, 500*time.Millisecond<<min(failures, 6)))) // full jitter
	}
}

func connect() (*stomp.Conn, error) {
	config, err := tlsConfig(os.Args[3], os.Args[4], os.Args[5])
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: 15 * time.Second} // for the handshake of TLS too
	transport, err := tls.DialWithDialer(dialer, "tcp", net.JoinHostPort(os.Args[1], os.Args[2]), config)
	if err != nil {
		return nil, err
	}
	_ = transport.SetReadDeadline(time.Now().Add(15 * time.Second))
	conn, err := stomp.Connect(transport,
		stomp.ConnOpt.Host("MAXVAPI"),
		stomp.ConnOpt.AcceptVersion(stomp.V12),
		stomp.ConnOpt.HeartBeat(10*time.Second, 10*time.Second),
		stomp.ConnOpt.Header("client-id", "recipe-go-stomp"),
		stomp.ConnOpt.Header("rejections", "error"), // go-stomp hides the headers of a RECEIPT
		stomp.ConnOpt.Header("window", "10"))        // fewer than the 16 messages that a subscription buffers
	if err != nil {
		transport.Close()
		return nil, err
	}
	return conn, transport.SetReadDeadline(time.Time{})
}

// tlsConfig trusts by chain, not by name: InsecureSkipVerify turns off both checks, and VerifyConnection restores that of the chain.
func tlsConfig(ca, certificate, key string) (*tls.Config, error) {
	own, err := tls.LoadX509KeyPair(certificate, key) // read for each connection, so that a renewed one is used
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	pem, err := os.ReadFile(ca)
	if err != nil || !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("no authority in %s: %w", ca, err)
	}
	verify := func(state tls.ConnectionState) error {
		between := x509.NewCertPool()
		for _, one := range state.PeerCertificates[1:] {
			between.AddCert(one)
		}
		_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between})
		return err
	}
	return &tls.Config{Certificates: []tls.Certificate{own}, InsecureSkipVerify: true, VerifyConnection: verify}, nil
}

// run serves one connection. It returns nil after DISCONNECT.
func run(conn *stomp.Conn, lines <-chan string) error {
	options := []func(*frame.Frame) error{
		stomp.SubscribeOpt.Id("all"),
		stomp.SubscribeOpt.Header("accept-format", "json"),
	}
	if resume == nil {
		options = append(options, stomp.SubscribeOpt.Header("durable", "true"))
	} else {
		options = append(options, stomp.SubscribeOpt.Header("markers", "true"), stomp.SubscribeOpt.Header("eager", "true"))
		if resume.position != "" {
			options = append(options, stomp.SubscribeOpt.Header("since", resume.position))
		}
		resume.seen = map[string]bool{}
	}
	subscription, err := conn.Subscribe(os.Args[6], stomp.AckClient, options...)
	if err != nil {
		return err
	}
	for {
		select {
		case message := <-subscription.C:
			if message.Err != nil {
				return message.Err
			}
			if err := receive(conn, message); err != nil {
				return err
			}
		case line, more := <-lines:
			if !more {
				return conn.Disconnect()
			}
			if err := send(conn, line); err != nil {
				return err
			}
		}
	}
}

// receive handles a MESSAGE.
func receive(conn *stomp.Conn, message *stomp.Message) error {
	if message.Header.Get("ack") == "" && resume != nil { // a marker or a notice
		return resume.notice(message.Destination, message.Header)
	}
	show(message.Destination, string(bytes.TrimSpace(message.Body)))
	return conn.Ack(message) // only then comes the next value of this topic
}

// show handles a change; without body the topic is gone. Put the work of your program here.
func show(topic, body string) {
	if resume != nil {
		resume.took(topic, body != "")
	}
	if body == "" {
		fmt.Println("deleted", topic)
	} else {
		fmt.Println("value", topic, body)
	}
}

// resume is nil with a durable subscription.
var resume *Resume

// Resume is the state from which the program continues by `since`. A program that stores values stores the position with them.
type Resume struct {
	file     string
	position string
	held     map[string]bool // topics of which the program has a value
	seen     map[string]bool // topics that came since SUBSCRIBE; nil after the marker `complete`
}

// load reads the position and the topics of the program before.
func (r *Resume) load() {
	if content, err := os.ReadFile(r.file); err == nil {
		lines := strings.Split(string(content), "\n")
		r.position = lines[0]
		for _, topic := range lines[1:] {
			r.held[topic] = true
		}
	}
}

// took records a change that the program is done with.
func (r *Resume) took(topic string, hasValue bool) {
	if r.seen != nil {
		r.seen[topic] = true
	}
	if hasValue {
		r.held[topic] = true
	} else {
		delete(r.held, topic)
	}
}

// notice handles a MESSAGE that has no ACK: a marker, or a notice about a topic.
func (r *Resume) notice(topic string, header *frame.Header) error {
	switch kind := header.Get("kind"); {
	case topic != "$marker" && kind == "left": // the right to receive it is gone
		show(topic, "")
	case topic != "$marker": // stale or fresh: the value stays
		fmt.Println(kind, topic, header.Get("reason"))
	case kind == "complete":
		// Without a position that can be used, all values came: the program drops the topics that were not among them.
		if r.position == "" || header.Get("result") == "since-unavailable" {
			for topic := range r.held {
				if !r.seen[topic] {
					show(topic, "")
				}
			}
		}
		r.seen = nil
	}
	if position := header.Get("position"); position != "" && r.seen == nil { // all that came before is handled
		r.position = position
		return r.store()
	}
	return nil
}

// store replaces the file at once, so that a crash leaves the old one or the new one.
func (r *Resume) store() error {
	lines := slices.Concat([]string{r.position}, slices.Sorted(maps.Keys(r.held)))
	if err := os.WriteFile(r.file+".new", []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		return err
	}
	if err := os.Rename(r.file+".new", r.file); err != nil {
		return err
	}
	fmt.Println("position", r.position)
	return nil
}

// send publishes a line and waits for its RECEIPT. With rejections:error a rejection is the ERROR that ends the connection.
func send(conn *stomp.Conn, line string) error {
	destination, body, _ := strings.Cut(line, " ")
	err := conn.Send(destination, "application/json", []byte(body), stomp.SendOpt.Receipt)
	var refused stomp.Error
	switch {
	case err == nil:
		fmt.Println("accepted", destination)
	case errors.As(err, &refused) && refused.Frame != nil && refused.Frame.Header.Get("disposition") != "":
		fmt.Println(refused.Frame.Header.Get("disposition"), destination, refused.Frame.Header.Get("result"))
	default:
		fmt.Println("unknown", destination) // it may have been accepted
	}
	return err
}
