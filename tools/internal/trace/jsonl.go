package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"
)

// MooncakeBlockTokens is the block size of Mooncake's traces, whose lines do
// not carry one.
const MooncakeBlockTokens = 512

// jsonlReader streams Mooncake's JSONL; memory is one line.
type jsonlReader struct {
	name    string
	in      *bufio.Reader
	maxLine int

	line int
	buf  []byte
	rec  jsonlRecord
	last time.Duration
}

// jsonlRecord keeps scalars as raw text so that what is missing, of the wrong
// type or out of range can be told apart, and reported with its value.
type jsonlRecord struct {
	Timestamp    rawField `json:"timestamp"`
	InputLength  rawField `json:"input_length"`
	OutputLength rawField `json:"output_length"`
	HashIDs      idList   `json:"hash_ids"`
	BlockSize    rawField `json:"block_size"`
}

func (j *jsonlReader) next(req *Request) error {
	for {
		if err := j.readLine(); err != nil {
			return err
		}
		if len(bytes.TrimSpace(j.buf)) > 0 {
			break
		}
	}
	r := &j.rec
	r.Timestamp, r.InputLength, r.OutputLength, r.BlockSize = r.Timestamp[:0], r.InputLength[:0], r.OutputLength[:0], r.BlockSize[:0]
	r.HashIDs.reset()
	if err := json.Unmarshal(j.buf, r); err != nil {
		return &FormatError{Name: j.name, Line: j.line, Field: "line", Value: shorten(bytes.TrimSpace(j.buf)), Limit: "one JSON object", Err: err}
	}
	at := place{name: j.name, line: j.line}
	t, err := at.duration("timestamp", r.Timestamp, time.Millisecond)
	if err != nil {
		return err
	}
	if t < j.last {
		return at.error("timestamp", string(r.Timestamp), fmt.Sprintf("≥ %d, the request before it", j.last.Milliseconds()))
	}
	req.Time = t
	if req.InputTokens, err = at.int("input_length", r.InputLength, 0, maxTokens); err != nil {
		return err
	}
	if req.OutputTokens, err = at.int("output_length", r.OutputLength, 0, maxTokens); err != nil {
		return err
	}
	req.BlockTokens = MooncakeBlockTokens
	if len(r.BlockSize) > 0 {
		if req.BlockTokens, err = at.int("block_size", r.BlockSize, 1, maxBlock); err != nil {
			return err
		}
	}
	if err := at.blocks("input_length", "hash_ids", &r.HashIDs, req); err != nil {
		return err
	}
	j.last = t
	return nil
}

// readLine leaves the next line, without its end, in j.buf.
func (j *jsonlReader) readLine() error {
	j.buf = j.buf[:0]
	j.line++
	for {
		part, err := j.in.ReadSlice('\n')
		j.buf = append(j.buf, part...)
		if len(j.buf) > j.maxLine {
			return &FormatError{Name: j.name, Line: j.line, Field: "line",
				Value: fmt.Sprintf("over %d bytes", j.maxLine), Limit: fmt.Sprintf("≤ %d bytes", j.maxLine)}
		}
		switch err {
		case nil:
			return nil
		case bufio.ErrBufferFull:
		case io.EOF:
			if len(j.buf) > 0 {
				return nil // a last line without its newline
			}
			return io.EOF
		default:
			return readError(j.name, j.line, err)
		}
	}
}

// rawField is a JSON value kept as it was written; empty when absent.
type rawField []byte

func (f *rawField) UnmarshalJSON(b []byte) error {
	*f = append((*f)[:0], b...)
	return nil
}

// idList parses an array of unsigned integers without reflection: block ids
// are nearly all of a trace's bytes. What it cannot read is kept in bad.
type idList struct {
	ids     []uint64
	present bool
	bad     string
}

func (l *idList) reset() { *l = idList{ids: l.ids[:0]} }

// UnmarshalJSON is given valid JSON by encoding/json.
func (l *idList) UnmarshalJSON(b []byte) error {
	l.reset()
	l.present = true
	if len(b) < 2 || b[0] != '[' {
		l.bad = shorten(b)
		return nil
	}
	for b = b[1 : len(b)-1]; ; {
		b = bytes.TrimLeft(b, " \t\r\n,")
		if len(b) == 0 {
			return nil
		}
		var id uint64
		n := 0
		for n < len(b) && b[n] >= '0' && b[n] <= '9' {
			d := uint64(b[n] - '0')
			if id > (math.MaxUint64-d)/10 {
				n = 0
				break
			}
			id = id*10 + d
			n++
		}
		if n == 0 || n < len(b) && !bytes.ContainsRune([]byte(" \t\r\n,"), rune(b[n])) {
			if end := bytes.IndexByte(b, ','); end > 0 {
				b = b[:end]
			}
			l.bad = shorten(b)
			return nil
		}
		l.ids = append(l.ids, id)
		b = b[n:]
	}
}

// place is where in a file a record stands; its methods turn raw fields into
// values or into errors that say so.
type place struct {
	name string
	line int
	path string // prefix of field names, e.g. "requests[3]."
}

func (p place) error(field, value, limit string) *FormatError {
	return &FormatError{Name: p.name, Line: p.line, Field: p.path + field, Value: value, Limit: limit}
}

func (p place) int(field string, raw rawField, lo, hi int) (int, error) {
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || n < int64(lo) || n > int64(hi) {
		return 0, p.error(field, shorten(raw), fmt.Sprintf("an integer in %d..%d", lo, hi))
	}
	return int(n), nil
}

// maxTime keeps sums of two times inside a time.Duration; 100 years also
// takes timestamps counted from 1970.
const maxTime = 100 * 365 * 24 * time.Hour

func (p place) duration(field string, raw rawField, unit time.Duration) (time.Duration, error) {
	x, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || !(x >= 0) || x*float64(unit) > float64(maxTime) {
		return 0, p.error(field, shorten(raw), fmt.Sprintf("a number in 0..%d", int64(maxTime/unit)))
	}
	return time.Duration(math.Round(x * float64(unit))), nil
}

// blocks sets the request's blocks and tail from its ids; InputTokens and
// BlockTokens are set already.
func (p place) blocks(lenField, idsField string, l *idList, req *Request) error {
	switch {
	case !l.present:
		return p.error(idsField, "missing", "an array of block ids")
	case l.bad != "":
		return p.error(idsField, l.bad, "an array of unsigned 64-bit integers")
	}
	full, rest := req.InputTokens/req.BlockTokens, req.InputTokens%req.BlockTokens
	switch {
	case len(l.ids) == full:
		req.LastValidTokens = 0
	case len(l.ids) == full+1 && rest > 0:
		req.LastValidTokens = rest
	default:
		want := strconv.Itoa(full)
		if rest > 0 {
			want += " or " + strconv.Itoa(full+1)
		}
		return p.error(idsField, fmt.Sprintf("%d ids", len(l.ids)),
			fmt.Sprintf("%s for %s %d and %d-token blocks", want, lenField, req.InputTokens, req.BlockTokens))
	}
	req.Blocks = l.ids
	return nil
}
