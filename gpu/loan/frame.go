package loan

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu/lend"
	"github.com/skepkv/skep/layout/elastic"
)

// frame is one packet of the socket, as JSON: exactly one field is set.
type frame struct {
	Hello   *hello        `json:"hello,omitempty"`   // borrower: first
	Welcome *welcome      `json:"welcome,omitempty"` // lender: the answer, with the arena's descriptor
	Message *lend.Message `json:"message,omitempty"` // either, from then on
	Ask     bool          `json:"ask,omitempty"`     // anybody: how does it stand?
	Status  *Status       `json:"status,omitempty"`  // lender: the answer
	Refused string        `json:"refused,omitempty"` // lender: why there is no other answer
}

type hello struct {
	Version int    `json:"version"`
	Name    string `json:"name"`
	Want    int    `json:"want"` // units; 0: as many as there are
}

type welcome struct {
	Borrower int           `json:"borrower"`
	Life     uint64        `json:"life"`
	Name     string        `json:"name"`
	Units    int           `json:"units"`
	Unit     elastic.Unit  `json:"unit"`
	Lease    time.Duration `json:"lease"`
}

const (
	version  = 1
	maxFrame = 64 << 10
	maxName  = 128 // bytes of a name
)

// longest is how long one side waits for the other's first words, and for a packet to be
// taken.
const longest = 5 * time.Second

var errProtocol = errors.New("not a packet of a lender's socket")

func send(c *net.UnixConn, f frame, file *os.File) error {
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if err := c.SetWriteDeadline(time.Now().Add(longest)); err != nil {
		return err
	}
	return write(c, b, file)
}

// receive waits for the next packet. The file is the caller's to close; nil mostly.
func receive(c *net.UnixConn) (frame, *os.File, error) {
	var f frame
	b, file, err := read(c)
	if err != nil {
		return f, nil, err
	}
	if err := json.Unmarshal(b, &f); err != nil {
		if file != nil {
			file.Close()
		}
		return f, nil, fmt.Errorf("%w: %w", errProtocol, err)
	}
	return f, file, nil
}

func dial(op, socket string) (*net.UnixConn, error) {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return nil, &skep.Error{Op: op, Kind: skep.Unavailable, Field: "socket", Value: socket, Err: err}
	}
	return c, nil
}

// ask sends the first packet and waits for the answer.
func ask(op, socket string, c *net.UnixConn, f frame) (frame, *os.File, error) {
	_ = c.SetReadDeadline(time.Now().Add(longest))
	if err := send(c, f, nil); err != nil {
		return f, nil, &skep.Error{Op: op, Kind: skep.Unavailable, Field: "socket", Value: socket, Err: err}
	}
	f, file, err := receive(c)
	if err != nil {
		return f, nil, &skep.Error{Op: op, Kind: skep.Unavailable, Field: "socket", Value: socket, Err: err}
	}
	if f.Refused != "" {
		if file != nil {
			file.Close()
		}
		return f, nil, &skep.Error{Op: op, Kind: skep.Denied, Field: "socket", Value: socket, Err: errors.New(f.Refused)}
	}
	return f, file, c.SetReadDeadline(time.Time{})
}
