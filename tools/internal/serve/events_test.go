package serve

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/wire/httpapi"
)

// Nothing is published unless it is asked for, and then to this machine alone unless an address says otherwise.
func TestEventsAreOffAndThenLocal(t *testing.T) {
	t.Parallel()
	c := Default()
	require.Empty(t, c.eventPorts())
	c.Events.ZMQ, c.Events.ZMQReplay = ":5557", "0.0.0.0:5558"
	require.Equal(t, []port{{"events.zmq", "127.0.0.1:5557"}, {"events.zmq_replay", "0.0.0.0:5558"}}, c.eventPorts())
	require.Empty(t, c.checkEvents())
}

func TestSettingsOfEventsAreChecked(t *testing.T) {
	t.Parallel()
	file := write(t, "skep.yaml", `
dir: D
events: {zmq_replay: ":1", topic: "a@b", namespaces: [nothing], hashes: hex, buffer: 0, buffer_bytes: 1KiB}
`)
	_, err := Load(file, nil, nil)
	require.ErrorIs(t, err, skep.Invalid)
	for _, field := range []string{"zmq_replay is :1, must be none", "topic", "namespaces", "hashes is hex", "buffer is 0",
		"buffer_bytes"} {
		assert.ErrorContains(t, err, "events."+field)
	}
	_, err = Load("", []string{"SKEP_EVENTS_ZMQ=nowhere", "SKEP_EVENTS_ZMQ_REPLAY=:99999"}, map[string]string{"dir": "D"})
	require.ErrorContains(t, err, "events.zmq is")
	require.ErrorContains(t, err, "events.zmq_replay, port is")
}

// A server publishes what is put through its ports, and ends with whoever listens.
func TestAServerPublishesEvents(t *testing.T) {
	t.Parallel()
	c, err := Load("", nil, map[string]string{"dir": t.TempDir(), "listen": None, "unix": None})
	require.NoError(t, err)
	c.RESP, c.HTTP = "127.0.0.1:0", "127.0.0.1:0"
	c.Events.ZMQ, c.Events.ZMQReplay, c.Events.Node = ":0", ":0", "here"
	at := map[string]string{}
	var log bytes.Buffer
	ready := make(chan httpapi.ServerInfo, 1)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	st := memstore.New(memstore.Options{})
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	go func() {
		ended <- Run(ctx, c, Options{Store: st, Log: &log, Ready: func(i httpapi.ServerInfo) { ready <- i }})
	}()
	for _, l := range (<-ready).Listeners {
		at[l.Protocol] = l.Address
	}
	require.Contains(t, at["zmq"], "127.0.0.1:")
	require.Contains(t, at["zmq_replay"], "127.0.0.1:")

	router := hello(t, at["zmq"], "SUB")
	_, err = router.Write([]byte("\x00\x0a\x01kv@here@d")) // the subscription
	require.NoError(t, err)
	set, err := net.Dial("tcp", at["resp"])
	require.NoError(t, err)
	defer set.Close()
	heard := make(chan string, 1)
	go func() {
		b := make([]byte, 4096)
		n, _ := router.Read(b)
		heard <- string(b[:n])
	}()
	answer := make([]byte, 5)
	require.Eventually(t, func() bool { // until the subscription has arrived
		_, err := fmt.Fprintf(set, "SET k v\r\n")
		assert.NoError(t, err)
		_, err = io.ReadFull(set, answer)
		assert.NoError(t, err)
		return len(heard) > 0
	}, time.Minute, time.Millisecond)
	first := <-heard
	assert.Contains(t, first, "kv@here@default/resp/0")
	assert.Contains(t, first, "STORAGE")

	page, err := http.Get("http://" + at["http"] + "/metrics")
	require.NoError(t, err)
	text, err := io.ReadAll(page.Body)
	require.NoError(t, err)
	require.NoError(t, page.Body.Close())
	assert.Contains(t, string(text), "skep_events_zmq_subscribers 1")
	assert.Contains(t, string(text), `skep_connection_files{protocol="events"} 1`)
	stop()
	require.NoError(t, <-ended)
	_, err = io.Copy(io.Discard, router)
	if err != nil {
		require.ErrorContains(t, err, "reset")
	}
	assert.NotContains(t, log.String(), "KV events have no credentials", "loopback needs no warning")
}

// hello connects to a socket of ZeroMQ and shakes hands as another one of that type.
func hello(t *testing.T, addr, kind string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	ready := "\x05READY\x0bSocket-Type\x00\x00\x00" + string(rune(len(kind))) + kind
	zeros := strings.Repeat("\x00", 48)
	_, err = c.Write([]byte("\xff" + zeros[:8] + "\x7f\x03\x00NULL" + zeros + "\x04" + string(rune(len(ready))) + ready))
	require.NoError(t, err)
	greeting := make([]byte, 64)
	_, err = io.ReadFull(c, greeting)
	require.NoError(t, err)
	require.Equal(t, "\xff\x03\x01NULL", string(greeting[:1])+string(greeting[10:16]))
	head := make([]byte, 2)
	_, err = io.ReadFull(c, head)
	require.NoError(t, err)
	_, err = io.CopyN(io.Discard, c, int64(head[1]))
	require.NoError(t, err)
	return c
}

// A listener elsewhere is warned of: the keys of what is stored are read there without a token.
func TestEventsElsewhereAreWarnedOf(t *testing.T) {
	t.Parallel()
	c, err := Load("", nil, map[string]string{"dir": t.TempDir(), "listen": None, "unix": None, "http": "127.0.0.1:0"})
	require.NoError(t, err)
	c.RESP, c.Events.ZMQ = None, "0.0.0.0:0"
	st := memstore.New(memstore.Options{})
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	ctx, stop := context.WithCancel(t.Context())
	var log bytes.Buffer
	require.NoError(t, Run(ctx, c, Options{Store: st, Log: &log, Ready: func(httpapi.ServerInfo) { stop() }}))
	require.Contains(t, log.String(), "KV events have no credentials")
}
