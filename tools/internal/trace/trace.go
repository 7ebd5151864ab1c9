package trace

import (
	"archive/tar"
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Request is one prompt of a trace.
type Request struct {
	Time         time.Duration // since the start of the trace
	InputTokens  int
	OutputTokens int

	// Blocks names the prompt's blocks from its head, one id per BlockTokens
	// tokens. It belongs to the reader that returned it and is overwritten by
	// the next call: clone it to keep it.
	Blocks      []uint64
	BlockTokens int

	// LastValidTokens is how many tokens the last block holds when it is
	// partly filled, and 0 when every block is full.
	LastValidTokens int

	Session string // conversation, and agent/subagent within it; "" when the trace does not say
	Model   string // model that answered; "" when the trace does not say. Blocks are shared within one model only
}

// CachedTokens is the number of tokens that the first n blocks hold.
func (r Request) CachedTokens(n int) int {
	if n >= len(r.Blocks) && r.LastValidTokens > 0 {
		return (len(r.Blocks)-1)*r.BlockTokens + r.LastValidTokens
	}
	return min(n, len(r.Blocks)) * r.BlockTokens
}

// Format is the kind of file a Reader found.
type Format string

// The formats, see the package comment.
const (
	Mooncake Format = "mooncake-jsonl"
	KVTester Format = "kv-cache-tester"
	Archive  Format = "kv-cache-tester-tar"
)

// Bounds on what a file may make a reader hold. maxWindow is the zstd window
// that archives packed with --long=27 need.
const (
	maxWindow = 128 << 20
	peekBytes = 64 << 10 // how far into a file its format must show
	maxTokens = 1<<31 - 1
	maxBlock  = 1 << 20 // tokens a block
)

// limits are fields and not constants so that tests reach them.
type limits struct {
	lineBytes    int   // one JSONL line
	sessionBytes int64 // one kv-cache-tester document
	heldBytes    int64 // all sessions, as held for merging
}

var defaultLimits = limits{lineBytes: 8 << 20, sessionBytes: 256 << 20, heldBytes: 4 << 30}

// Reader streams the requests of one trace. It is not safe for concurrent use.
type Reader struct {
	format Format
	next   func(*Request) error
	err    error // first error, io.EOF included; repeated for ever
	close  func() error
}

// Open opens a trace file; "-" is standard input. Close releases it.
func Open(path string) (*Reader, error) {
	if path == "-" {
		return NewReader("standard input", os.Stdin)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	r, err := NewReader(path, f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	inner := r.close
	r.close = func() error { return errors.Join(inner(), f.Close()) }
	return r, nil
}

// NewReader reads a trace from src; name is used in errors. It returns a
// *FormatError when src is none of the formats, and reads sessions whole (an
// archive is merged by time) before it returns. Close does not close src.
func NewReader(name string, src io.Reader) (*Reader, error) {
	return newReader(name, src, defaultLimits)
}

func newReader(name string, src io.Reader, lim limits) (_ *Reader, err error) {
	in := bufio.NewReaderSize(src, peekBytes)
	closer := func() {}
	defer func() {
		if err != nil {
			closer()
		}
	}()
	if head, _ := in.Peek(4); isZstd(head) {
		// Concurrency 1 decodes on the caller's goroutine.
		z, err := zstd.NewReader(in, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, fmt.Errorf("trace %s: %w", name, err)
		}
		closer = z.Close
		in = bufio.NewReaderSize(z, peekBytes)
	}
	head, err := in.Peek(peekBytes)
	if err != nil && err != io.EOF {
		return nil, readError(name, 1, err)
	}
	r := &Reader{close: func() error { closer(); return nil }}
	r.format, err = detect(name, head)
	if err != nil {
		return nil, err
	}
	switch r.format {
	case Mooncake:
		j := &jsonlReader{name: name, in: in, maxLine: lim.lineBytes}
		r.next = j.next
	case KVTester, Archive:
		m := &merger{}
		l := loader{lim: lim, merger: m}
		if r.format == Archive {
			err = l.loadTar(name, in)
		} else {
			err = l.load(name, in)
		}
		if err != nil {
			return nil, err
		}
		r.next = m.next
	}
	return r, nil
}

// Format says what kind of file was found.
func (r *Reader) Format() Format { return r.format }

// Next returns the next request, io.EOF after the last, or a *FormatError.
// The request's Blocks are valid until the next call.
func (r *Reader) Next() (Request, error) {
	if r.err != nil {
		return Request{}, r.err
	}
	var req Request
	if r.err = r.next(&req); r.err != nil {
		return Request{}, r.err
	}
	return req, nil
}

// All iterates over the remaining requests; an error other than io.EOF is
// yielded once, with the zero Request, and ends the iteration.
func (r *Reader) All() iter.Seq2[Request, error] {
	return func(yield func(Request, error) bool) {
		for {
			req, err := r.Next()
			if err == io.EOF || !yield(req, err) || err != nil {
				return
			}
		}
	}
}

// Close releases the decoder, and the file when Open opened it. Next must not
// be called afterwards.
func (r *Reader) Close() error {
	r.err = os.ErrClosed
	return r.close()
}

// isZstd recognises a zstd frame, or a skippable frame before one.
func isZstd(head []byte) bool {
	if len(head) < 4 {
		return false
	}
	magic := binary.LittleEndian.Uint32(head)
	return magic == 0xFD2FB528 || magic&0xFFFFFFF0 == 0x184D2A50
}

// detect tells the formats apart by the first bytes of the plain file: a tar
// header, or the keys of the first JSON object.
func detect(name string, head []byte) (Format, error) {
	if _, err := tar.NewReader(bytes.NewReader(head)).Next(); err == nil {
		return Archive, nil
	}
	unknown := &FormatError{Name: name, Line: 1, Field: "content", Value: shorten(head),
		Limit: "a Mooncake JSONL line, a kv-cache-tester document or a tar of these"}
	if len(head) == 0 {
		unknown.Value = "empty"
	}
	dec := json.NewDecoder(bytes.NewReader(head))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return "", unknown
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			break
		}
		switch key {
		case "timestamp", "input_length", "output_length", "hash_ids":
			return Mooncake, nil
		case "block_size", "hash_id_scope", "requests":
			return KVTester, nil
		}
		var skip json.RawMessage
		if dec.Decode(&skip) != nil {
			break
		}
	}
	return "", unknown
}

// readError wraps a failure of the source or of its decompression.
func readError(name string, line int, err error) error {
	return &FormatError{Name: name, Line: line, Field: "content", Value: "unreadable", Limit: "a whole file", Err: err}
}
