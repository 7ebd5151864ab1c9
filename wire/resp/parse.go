package resp

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math"
)

// Limits of what a peer may send. A reader holds at most ArgBytes of arguments and one
// buffer of readBuffer bytes, whatever lengths a peer announces: memory is taken as
// bytes arrive.
const (
	// MaxValueBytes is the largest value, as in Redis.
	MaxValueBytes = 512 << 20
	// MaxKeyBytes is the longest key.
	MaxKeyBytes = 64 << 10
	// MaxArgs is the most arguments of a command: keys a call, twice for MSET.
	MaxArgs = 1 << 17
	// MaxArgBytes is the most bytes of a command's arguments, values left out. It is less, but never less than heldBytes,
	// where a quarter of Options.ReceiveBytes is.
	MaxArgBytes = 16 << 20
	// heldBytes is how much of small values one command may have held; the rest is stored as it comes.
	heldBytes = 4 << 20

	// What a peer may send before it has said who it is.
	strangerArgs     = 16
	strangerArgBytes = 4 << 10

	maxInlineBytes = 64 << 10
	readBuffer     = 16 << 10
)

// protocolError is a peer's mistake after which nothing it sends can be trusted to be
// a command; it is told and the connection closed.
type protocolError string

func (e protocolError) Error() string { return "Protocol error: " + string(e) }

func protocolErrorf(format string, args ...any) error {
	return protocolError(fmt.Sprintf(format, args...))
}

// command is one command: its arguments, the name first. Of arguments that are values
// (see valueArgs), args holds nil and values what became of them.
type command struct {
	args   [][]byte
	values []*value
}

// parser reads commands. What it returns is valid until the next read.
type parser struct {
	r   *bufio.Reader
	buf []byte // the arguments' bytes
	at  []int  // ends of arguments in buf, -1 for a value

	stranger bool
	most     int // bytes of a command's arguments; 0: MaxArgBytes
	// take reads a value of n bytes off r; nil: values are arguments like others.
	take func(n int64) (*value, error)
	// may says why a value of n bytes on a line is not wanted; nil: all are.
	may func(n int64) error
}

// valueArgs says whether argument i of n of the named command is a value to be
// streamed to the store and not held.
func valueArgs(name string, i, n int) bool {
	switch name {
	case "SET", "SETNX", "BLOB.TCP_SET":
		return i == 2
	case "SETEX", "PSETEX":
		return i == 3 && n == 4
	case "MSET":
		return i >= 2 && i%2 == 0
	}
	return false
}

// read reads one command. An empty command (a blank line, "*0") has no arguments.
func (p *parser) read() (command, error) {
	p.buf, p.at = p.buf[:0], p.at[:0]
	if cap(p.buf) > 64<<10 {
		p.buf = nil // one large command does not keep its memory
	}
	c, err := p.r.ReadByte()
	if err != nil {
		return command{}, err
	}
	if c != '*' {
		if err := p.r.UnreadByte(); err != nil {
			return command{}, err
		}
		return p.readInline()
	}
	maxArgs, maxBytes := MaxArgs, cmp.Or(p.most, MaxArgBytes)
	if p.stranger {
		maxArgs, maxBytes = strangerArgs, strangerArgBytes
	}
	n, err := p.length(math.MaxInt64, "invalid multibulk length")
	if err != nil {
		return command{}, err
	}
	if n > int64(maxArgs) {
		return command{}, protocolErrorf("invalid multibulk length: over %d arguments", maxArgs)
	}
	var values []*value
	for i := range int(n) {
		if c, err = p.r.ReadByte(); err != nil {
			return command{values: values}, unexpected(err)
		}
		if c != '$' {
			return command{values: values}, protocolErrorf("expected '$', got %q", c)
		}
		size, err := p.length(MaxValueBytes, "invalid bulk length")
		if err != nil {
			return command{values: values}, err
		}
		if size < 0 {
			return command{values: values}, protocolError("invalid bulk length")
		}
		if i > 0 && !p.stranger && p.take != nil && valueArgs(p.name(), i, int(n)) {
			v, err := p.take(size)
			if v != nil {
				values = append(values, v)
			}
			if err != nil {
				return command{values: values}, unexpected(err)
			}
			p.at = append(p.at, -1)
		} else {
			if int64(len(p.buf))+size > int64(maxBytes) {
				return command{values: values}, protocolErrorf("arguments over %d bytes", maxBytes)
			}
			if err := p.append(int(size)); err != nil {
				return command{values: values}, unexpected(err)
			}
		}
		if err := p.end(); err != nil {
			return command{values: values}, err
		}
	}
	return command{p.args(), values}, nil
}

// append reads n bytes of an argument, growing as they come.
func (p *parser) append(n int) error {
	for n > 0 {
		step := min(n, readBuffer)
		from := len(p.buf)
		p.buf = append(p.buf, make([]byte, step)...)
		if _, err := io.ReadFull(p.r, p.buf[from:]); err != nil {
			return err
		}
		n -= step
	}
	p.at = append(p.at, len(p.buf))
	return nil
}

// end reads the CR LF after an argument.
func (p *parser) end() error {
	for _, want := range []byte("\r\n") {
		c, err := p.r.ReadByte()
		if err != nil {
			return unexpected(err)
		}
		if c != want {
			return protocolError("argument does not end in CR LF")
		}
	}
	return nil
}

// length reads a decimal number that ends in CR LF, at most limit. -1 is allowed.
func (p *parser) length(limit int64, what string) (int64, error) {
	var n int64
	negative, digits := false, 0
	for {
		c, err := p.r.ReadByte()
		if err != nil {
			return 0, unexpected(err)
		}
		switch {
		case c == '-' && digits == 0 && !negative:
			negative = true
		case c >= '0' && c <= '9' && digits < 10:
			n = n*10 + int64(c-'0')
			digits++
		case c == '\r' && digits > 0:
			if c, err = p.r.ReadByte(); err != nil {
				return 0, unexpected(err)
			}
			if c != '\n' {
				return 0, protocolError(what)
			}
			if negative {
				n = -n
			}
			if n < -1 || n > limit {
				return 0, protocolError(what)
			}
			return n, nil
		default:
			return 0, protocolError(what)
		}
	}
}

func (p *parser) name() string {
	if len(p.at) == 0 || p.at[0] > 32 {
		return ""
	}
	return upper(p.buf[:p.at[0]])
}

func (p *parser) args() [][]byte {
	out := make([][]byte, len(p.at))
	from := 0
	for i, to := range p.at {
		if to >= 0 {
			out[i] = p.buf[from:to:to]
			from = to
		}
	}
	return out
}

// readInline reads a command as people type it: words parted by blanks, in quotes or not.
// What only HTTP begins a line with ends the connection, as in Redis: a browser can be made
// to send a request to a port of its own machine, with commands as its body.
func (p *parser) readInline() (command, error) {
	maxBytes := maxInlineBytes
	if p.stranger {
		maxBytes = strangerArgBytes
	}
	for {
		part, err := p.r.ReadSlice('\n')
		if err != nil && err != bufio.ErrBufferFull {
			return command{}, err
		}
		if len(p.buf)+len(part) > maxBytes {
			return command{}, protocolError("too big inline request")
		}
		p.buf = append(p.buf, part...)
		if err == nil {
			break
		}
	}
	args, ok := words(p.buf)
	if !ok {
		return command{}, protocolError("unbalanced quotes in request")
	}
	c := command{args: args}
	if len(args) == 0 {
		return c, nil
	}
	name := upper(args[0])
	if name == "POST" || name == "HOST:" {
		return command{}, protocolError("HTTP is not spoken on this port")
	}
	for i := range args {
		if i > 0 && !p.stranger && valueArgs(name, i, len(args)) {
			v := &value{size: int64(len(args[i]))}
			if p.may != nil {
				v.err = p.may(v.size)
			}
			if v.err == nil {
				v.inline = bytes.Clone(args[i])
			}
			c.values = append(c.values, v)
			args[i] = nil
		}
	}
	return c, nil
}

// buffered says whether a whole command named one of names lies in the buffer, so that
// reading it will not wait.
func (p *parser) buffered(names ...string) bool {
	b, _ := p.r.Peek(p.r.Buffered())
	count, b, ok := number(b, '*')
	if !ok || count < 1 {
		return false
	}
	for i := range count {
		var n int64
		if n, b, ok = number(b, '$'); !ok || n < 0 || int64(len(b)) < n+2 {
			return false
		}
		if i == 0 {
			name, known := upper(b[:min(n, 32)]), false
			for _, want := range names {
				known = known || name == want
			}
			if !known {
				return false
			}
		}
		b = b[n+2:]
	}
	return true
}

// next says whether what is buffered begins a command of that name.
func (p *parser) next(name string) bool {
	b, _ := p.r.Peek(min(p.r.Buffered(), 64))
	_, b, ok := number(b, '*')
	if !ok {
		return false
	}
	n, b, ok := number(b, '$')
	return ok && n == int64(len(name)) && len(b) > len(name) && upper(b[:len(name)]) == name
}

// number splits "<prefix>123\r\n" off b.
func number(b []byte, prefix byte) (n int64, rest []byte, ok bool) {
	i := bytes.IndexByte(b[:min(len(b), 16)], '\n')
	if i < 3 || b[0] != prefix || b[i-1] != '\r' {
		return 0, b, false
	}
	for _, c := range b[1 : i-1] {
		if c < '0' || c > '9' {
			return 0, b, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, b[i+1:], true
}

// unexpected makes an end in mid-command what it is.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// upper is a command's name in capitals, of ASCII letters only.
func upper(b []byte) string {
	var buf [32]byte
	n := min(len(b), len(buf))
	for i, c := range b[:n] {
		if c >= 'a' && c <= 'z' {
			c -= 'a' - 'A'
		}
		buf[i] = c
	}
	return string(buf[:n])
}
