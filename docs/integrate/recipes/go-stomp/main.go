// Publish lines "DESTINATION JSON" of standard input, and print each change of a glob, with go-stomp over mutual TLS.
// Usage: recipe HOST PORT CA CERTIFICATE KEY GLOB [POSITION-FILE]
// With a file for the position it continues by `since` in place of a durable subscription.
package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
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
	if len(os.Args) == 7 {
		options = append(options, stomp.SubscribeOpt.Header("durable", "true"))
	} else {
		options = append(options, stomp.SubscribeOpt.Header("markers", "true"), stomp.SubscribeOpt.Header("eager", "true"))
		if position, err := os.ReadFile(os.Args[7]); err == nil {
			options = append(options, stomp.SubscribeOpt.Header("since", string(position)))
		}
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

// receive handles a change, or a marker. Put the work of your program here.
func receive(conn *stomp.Conn, message *stomp.Message) error {
	if message.Destination == "$marker" {
		// All that came before is handled, so its position may be stored. A marker has no ACK.
		if position := message.Header.Get("position"); position != "" {
			return os.WriteFile(os.Args[7], []byte(position), 0o600)
		}
		return nil
	}
	if len(message.Body) == 0 {
		fmt.Println("deleted", message.Destination)
	} else {
		fmt.Println("value", message.Destination, string(bytes.TrimSpace(message.Body)))
	}
	return conn.Ack(message) // only then comes the next value of this topic
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
