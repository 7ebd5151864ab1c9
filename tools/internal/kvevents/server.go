package kvevents

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
)

// server serves a connection until it ends.
type server func(context.Context, net.Conn) error

// Run publishes on pub, and answers requests for what was missed on again, which may be nil, until ctx ends. It closes
// both, and returns when every connection has ended. Whoever bounds connections does it in the listeners.
//
// Errors: those of a listener that fails before ctx ends.
func (p *Publisher) Run(ctx context.Context, pub, again net.Listener) error {
	run, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop(nil)
	wg.Go(func() { p.follow(run) })
	for _, l := range []struct {
		at    net.Listener
		serve server
	}{{pub, p.subscriber}, {again, p.requests}} {
		if l.at == nil {
			continue
		}
		wg.Go(func() {
			<-run.Done()
			_ = l.at.Close()
		})
		wg.Go(func() {
			err := p.accept(run, &wg, l.at, l.serve)
			stop(fmt.Errorf("events on %s: %w", l.at.Addr(), err)) // unless it has been stopped
		})
	}
	<-run.Done()
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(run)
}

// accept serves connections until one cannot be accepted, and says why.
func (p *Publisher) accept(ctx context.Context, wg *sync.WaitGroup, l net.Listener, serve server) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		wg.Go(func() {
			defer c.Close()
			stop := context.AfterFunc(ctx, func() { _ = c.Close() })
			defer stop()
			if err := serve(ctx, c); errors.Is(err, errProtocol) {
				p.count.refused.Add(1)
				p.o.Log.Warn("a connection for events was closed", "from", c.RemoteAddr(), "error", err)
			}
		})
	}
}

const (
	maxSubscriptions = 64 // of a connection
	atATime          = 64 // batches that are taken from the ring
)

// subscriptions are the beginnings of topics that a connection wants, and how often it said so.
type subscriptions struct {
	mu   sync.Mutex
	want map[string]int
}

// set adds or takes away one.
func (s *subscriptions) set(topic []byte, on bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, known := s.want[string(topic)]
	switch {
	case on && !known && len(s.want) >= maxSubscriptions:
		return fmt.Errorf("more than %d subscriptions: %w", maxSubscriptions, errProtocol)
	case on:
		s.want[string(topic)] = n + 1
	case n == 1:
		delete(s.want, string(topic))
	case n > 1:
		s.want[string(topic)] = n - 1
	}
	return nil
}

func (s *subscriptions) match(topic string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for begin := range s.want {
		if len(topic) >= len(begin) && topic[:len(begin)] == begin {
			return true
		}
	}
	return false
}

// subscriber serves a connection of the PUB socket until it ends.
func (p *Publisher) subscriber(ctx context.Context, c net.Conn) error {
	peer, err := greet(c, "PUB", "SUB", "XSUB")
	if err != nil {
		return err
	}
	p.count.subscribers.Add(1)
	defer p.count.subscribers.Add(-1)
	place := p.ring.follow() // before a subscription is read: whoever has subscribed hears what comes from then on
	defer place.leave()
	run, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	subs := &subscriptions{want: map[string]int{}}
	read := make(chan struct{})
	go func() {
		defer close(read)
		stop(subscribe(peer, subs))
	}()
	err = p.send(run, peer, subs, place)
	_ = c.Close() // ends who reads
	<-read
	return errors.Join(err, context.Cause(run))
}

// subscribe takes what a subscriber says, until it says no more.
func subscribe(peer *peer, subs *subscriptions) error {
	for {
		message, isCommand, err := peer.receive()
		if err != nil {
			return err
		}
		if isCommand {
			name, topic, err := peer.answer(message[0])
			if err == nil && (name == "SUBSCRIBE" || name == "CANCEL") {
				err = subs.set(topic, name == "SUBSCRIBE")
			}
			if err != nil {
				return err
			}
			continue
		}
		if f := message[0]; len(message) == 1 && len(f) > 0 && f[0] <= 1 { // as in ZMTP 3.0; XSUB may say other things, too
			if err := subs.set(f[1:], f[0] == 1); err != nil {
				return err
			}
		}
	}
}

// send sends what comes into the ring behind place, and what the subscriber wants of it, until ctx ends.
func (p *Publisher) send(ctx context.Context, peer *peer, subs *subscriptions, place *reader) error {
	var into [atATime]batch
	for {
		n, more := place.take(into[:])
		if n == 0 {
			select {
			case <-more:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		sent, err := sendTo(peer, into[:n], subs.match, nil)
		p.count.sent.Add(sent)
		if err != nil {
			return err
		}
		clear(into[:n])
	}
}

// sendTo sends those batches whose topic is wanted, each after the frames of before.
func sendTo(peer *peer, batches []batch, wanted func(topic string) bool, before [][]byte) (sent int64, err error) {
	peer.writing.Lock()
	defer peer.writing.Unlock()
	var number [8]byte
	for i := range batches {
		b := &batches[i]
		if !wanted(b.topic) {
			continue
		}
		binary.BigEndian.PutUint64(number[:], b.seq)
		frames := append(before[:len(before):len(before)], []byte(b.topic), number[:], b.payload)
		if err := peer.message(frames...); err != nil {
			return sent, err
		}
		sent++
	}
	return sent, peer.flush()
}

// end is the number of the message that ends an answer.
var end = bytes.Repeat([]byte{0xff}, 8)

// requests serves a connection of the ROUTER socket until it ends. A request is an empty frame and a number of up to 8
// bytes; its answer is the batches from there, each an empty frame, topic, number and batch, and one whose topic and
// batch are empty and whose number is -1.
func (p *Publisher) requests(ctx context.Context, c net.Conn) error {
	peer, err := greet(c, "ROUTER", "REQ", "DEALER", "ROUTER")
	if err != nil {
		return err
	}
	delimiter := [][]byte{{}}
	for {
		message, isCommand, err := peer.receive()
		if err != nil {
			return err
		}
		if isCommand {
			if _, _, err := peer.answer(message[0]); err != nil {
				return err
			}
			continue
		}
		if len(message) != 2 || len(message[0]) != 0 || len(message[1]) > 8 {
			return fmt.Errorf("a request of %d frames, must be an empty one and a number: %w", len(message), errProtocol)
		}
		var number [8]byte
		copy(number[8-len(message[1]):], message[1])
		place, last, whole := p.ring.replay(binary.BigEndian.Uint64(number[:]))
		if whole {
			p.count.whole.Add(1)
		} else {
			p.count.cut.Add(1)
			p.ask()
		}
		var into [atATime]batch
		for place.at < last {
			n, _ := place.take(into[:min(uint64(len(into)), last-place.at)])
			if _, err := sendTo(peer, into[:n], func(string) bool { return true }, delimiter); err != nil {
				return err
			}
		}
		if err := p.sendEnd(peer); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

func (p *Publisher) sendEnd(peer *peer) error {
	peer.writing.Lock()
	defer peer.writing.Unlock()
	if err := peer.message(nil, nil, end, nil); err != nil {
		return err
	}
	return peer.flush()
}
