package serve

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/kvevents"
	"github.com/skepkv/skep/wire/httpapi"
)

// How events.hashes may be.
const (
	hashesInt   = "int"
	hashesBytes = "bytes"
)

// eventConnections is how many connections the sockets of KV events may have together.
const eventConnections = 128

// eventPorts lists the sockets of KV events that are on.
func (c *Config) eventPorts() (out []port) {
	if c.Events.ZMQ == None {
		return nil
	}
	out = append(out, port{"events.zmq", hereWhereNoHost(c.Events.ZMQ)})
	if c.Events.ZMQReplay != None {
		out = append(out, port{"events.zmq_replay", hereWhereNoHost(c.Events.ZMQReplay)})
	}
	return out
}

// hereWhereNoHost is addr, on this machine only where it names no host.
func hereWhereNoHost(addr string) string {
	if strings.HasPrefix(addr, ":") {
		return "127.0.0.1" + addr
	}
	return addr
}

func (c *Config) checkEvents() (wrong []error) {
	e := &c.Events
	if e.ZMQ == None && e.ZMQReplay != None {
		wrong = append(wrong, problem("events.zmq_replay", e.ZMQReplay, "none while events.zmq is"))
	}
	for _, p := range c.eventPorts() {
		if _, number, err := net.SplitHostPort(p.addr); err != nil {
			wrong = append(wrong, problem(p.name, strconv.Quote(p.addr), "HOST:PORT, :PORT for this machine alone, or none"))
		} else if n, err := strconv.Atoi(number); err != nil || n < 0 || n > 65535 {
			wrong = append(wrong, problem(p.name+", port", strconv.Quote(number), "0 to 65535"))
		}
	}
	if e.Hashes != hashesInt && e.Hashes != hashesBytes {
		wrong = append(wrong, problem("events.hashes", e.Hashes, fmt.Sprintf("%s or %s", hashesInt, hashesBytes)))
	}
	o := c.eventOptions()
	return append(wrong, o.Check()...)
}

func (c *Config) eventOptions() kvevents.Options {
	e := &c.Events
	return kvevents.Options{
		Topic: e.Topic, Node: e.Node, Namespaces: e.Namespaces, Bytes: e.Hashes == hashesBytes,
		Batches: e.Buffer, Room: int64(e.BufferBytes),
	}
}

// listenEvents opens the sockets of KV events.
func (s *server) listenEvents(out []listener) ([]listener, error) {
	for _, p := range s.c.eventPorts() {
		l, err := net.Listen("tcp", p.addr)
		if err != nil {
			return out, &skep.Error{Op: "settings", Kind: skep.Invalid, Field: p.name, Value: p.addr, Err: err}
		}
		if host, _, _ := net.SplitHostPort(p.addr); !loopback(host) {
			s.log.Warn("KV events have no credentials: whoever reaches this port may read the keys of what is stored",
				"port", p.name, "address", p.addr)
		}
		_, protocol, _ := strings.Cut(p.name, ".")
		out = append(out, listener{l, protocol, false})
		s.info.Listeners = append(s.info.Listeners, httpapi.Listener{Protocol: protocol, Address: l.Addr().String()})
	}
	return out, nil
}

// makeEvents makes who publishes KV events, where they are published.
func (s *server) makeEvents() (err error) {
	if s.c.Events.ZMQ == None {
		return nil
	}
	o := s.c.eventOptions()
	if o.Node == "" {
		o.Node = s.node
	}
	if o.Node == "" {
		if o.Node, err = os.Hostname(); err != nil {
			return &skep.Error{Op: "settings", Kind: skep.Invalid, Field: "events.node", Err: err}
		}
	}
	o.Log = s.log.With("part", "events")
	if s.events, err = kvevents.New(s.st, o); err != nil {
		return err
	}
	s.reg.MustRegister(s.events)
	return nil
}

// eventsReplay is the listener of requests for events that were missed, with its bound; nil: there is none.
func (s *server) eventsReplay(listeners []listener) net.Listener {
	for _, l := range listeners {
		if l.protocol == "zmq_replay" {
			return s.bounded(l)
		}
	}
	return nil
}
