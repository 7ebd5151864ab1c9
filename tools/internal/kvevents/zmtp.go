package kvevents

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// ZMTP 3.1 (https://rfc.zeromq.org/spec/37/) as far as a server of PUB and ROUTER sockets speaks it, with the NULL
// mechanism. Peers of 3.0 are served, too: they subscribe by messages, and those of 3.1 by commands.

// Flags of a frame.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

// What a peer may do.
const (
	maxFrame        = 1 << 10 // bytes of a frame: a topic, or a sequence number
	maxFrames       = 8       // of a message
	handshakeWithin = 10 * time.Second
	takeWithin      = time.Minute // for a peer to take something
	greetingBytes   = 64
)

var errProtocol = errors.New("not as ZMTP 3 has it")

// peer is a connection after its handshake. One goroutine reads; those that write hold writing.
type peer struct {
	c net.Conn
	r *bufio.Reader

	writing sync.Mutex
	w       *bufio.Writer
	head    [9]byte
}

// greet carries out the handshake of a socket of type own with one of the types that may talk to it.
func greet(c net.Conn, own string, others ...string) (*peer, error) {
	if err := c.SetDeadline(time.Now().Add(handshakeWithin)); err != nil {
		return nil, err
	}
	p := &peer{c: c, r: bufio.NewReaderSize(c, 4<<10), w: bufio.NewWriterSize(c, 64<<10)}
	hello := make([]byte, greetingBytes) // signature, version 3.1, mechanism, as-server 0, zeros
	hello[0], hello[9], hello[10], hello[11] = 0xff, 0x7f, 3, 1
	copy(hello[12:32], "NULL")
	if _, err := c.Write(hello); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(p.r, hello); err != nil {
		return nil, err
	}
	mechanism := strings.TrimRight(string(hello[12:32]), "\x00")
	if hello[0] != 0xff || hello[9] != 0x7f || hello[10] < 3 || mechanism != "NULL" {
		return nil, fmt.Errorf("greeting of version %d, mechanism %q: %w", hello[10], mechanism, errProtocol)
	}
	ready := append([]byte("\x05READY"), property("Socket-Type", own)...)
	if own == "ROUTER" {
		ready = append(ready, property("Identity", "")...)
	}
	if err := p.send(flagCommand, ready); err != nil {
		return nil, err
	}
	flags, body, err := p.frame()
	if err != nil {
		return nil, err
	}
	name, rest, ok := command(body)
	if flags&flagCommand == 0 || !ok || name != "READY" {
		return nil, fmt.Errorf("%q in place of READY: %w", name, errProtocol)
	}
	kind := socketType(rest)
	if !slices.Contains(others, kind) {
		_ = p.send(flagCommand, append([]byte("\x05ERROR"), shortString("Invalid socket type")...))
		return nil, fmt.Errorf("a socket of type %q at one of type %s: %w", kind, own, errProtocol)
	}
	return p, c.SetDeadline(time.Time{})
}

func shortString(s string) []byte { return append([]byte{byte(len(s))}, s...) }

// property is a pair of a command's metadata.
func property(name, value string) []byte {
	return append(binary.BigEndian.AppendUint32(shortString(name), uint32(len(value))), value...)
}

// command splits a command's body.
func command(body []byte) (name string, rest []byte, ok bool) {
	if len(body) == 0 || len(body) < 1+int(body[0]) {
		return "", nil, false
	}
	return string(body[1 : 1+body[0]]), body[1+body[0]:], true
}

// socketType looks it up in metadata; empty: it is not there, or the metadata is not whole.
func socketType(meta []byte) string {
	for len(meta) > 0 {
		name, rest, ok := command(meta)
		if !ok || len(rest) < 4 {
			return ""
		}
		n := binary.BigEndian.Uint32(rest)
		if uint64(n) > uint64(len(rest)-4) {
			return ""
		}
		if strings.EqualFold(name, "Socket-Type") {
			return string(rest[4 : 4+n])
		}
		meta = rest[4+n:]
	}
	return ""
}

// frame reads the next frame. One of more than maxFrame is an error before anything is allocated for it.
func (p *peer) frame() (flags byte, body []byte, err error) {
	if flags, err = p.r.ReadByte(); err != nil {
		return 0, nil, err
	}
	if flags&^(flagMore|flagLong|flagCommand) != 0 {
		return 0, nil, fmt.Errorf("flags %#x: %w", flags, errProtocol)
	}
	var head [8]byte
	length := head[7:]
	if flags&flagLong != 0 {
		length = head[:]
	}
	if _, err := io.ReadFull(p.r, length); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint64(head[:])
	if n > maxFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes, at most %d: %w", n, maxFrame, errProtocol)
	}
	body = make([]byte, n)
	_, err = io.ReadFull(p.r, body)
	return flags, body, err
}

// receive reads the next message, of at most maxFrames frames, or the next command, which is its only frame.
func (p *peer) receive() (message [][]byte, isCommand bool, err error) {
	for {
		flags, body, err := p.frame()
		if err != nil {
			return nil, false, err
		}
		if flags&flagCommand != 0 {
			if len(message) > 0 || flags&flagMore != 0 {
				return nil, false, fmt.Errorf("a command within a message: %w", errProtocol)
			}
			return [][]byte{body}, true, nil
		}
		if message = append(message, body); len(message) > maxFrames {
			return nil, false, fmt.Errorf("a message of more than %d frames: %w", maxFrames, errProtocol)
		}
		if flags&flagMore == 0 {
			return message, false, nil
		}
	}
}

// answer carries out a command that any socket may get: a PING has a PONG. The others that are known are the caller's.
func (p *peer) answer(body []byte) (name string, rest []byte, err error) {
	name, rest, ok := command(body)
	switch {
	case !ok:
		return "", nil, fmt.Errorf("a command without a name: %w", errProtocol)
	case name == "ERROR":
		return name, nil, fmt.Errorf("the peer reports an error: %w", errProtocol)
	case name == "PING" && len(rest) >= 2: // a time to live, then what the PONG repeats
		p.writing.Lock()
		defer p.writing.Unlock()
		return name, nil, p.send(flagCommand, append([]byte("\x04PONG"), rest[2:]...))
	}
	return name, rest, nil
}

// send writes one frame and sends what is written.
func (p *peer) send(flags byte, body []byte) error {
	if err := p.put(flags, body); err != nil {
		return err
	}
	return p.flush()
}

// message writes a message of these frames.
func (p *peer) message(frames ...[]byte) error {
	for i, f := range frames {
		flags := byte(flagMore)
		if i == len(frames)-1 {
			flags = 0
		}
		if err := p.put(flags, f); err != nil {
			return err
		}
	}
	return nil
}

func (p *peer) put(flags byte, body []byte) error {
	if p.w.Available() < len(p.head)+len(body) { // it goes out, or waits
		if err := p.c.SetWriteDeadline(time.Now().Add(takeWithin)); err != nil {
			return err
		}
	}
	head := p.head[:2]
	if head[1] = byte(len(body)); len(body) > 255 {
		flags |= flagLong
		head = p.head[:9]
		binary.BigEndian.PutUint64(head[1:], uint64(len(body)))
	}
	head[0] = flags
	if _, err := p.w.Write(head); err != nil {
		return err
	}
	_, err := p.w.Write(body)
	return err
}

func (p *peer) flush() error {
	if p.w.Buffered() == 0 {
		return nil
	}
	if err := p.c.SetWriteDeadline(time.Now().Add(takeWithin)); err != nil {
		return err
	}
	return p.w.Flush()
}
