//go:build !linux

package loan

import (
	"net"
	"os"
	"time"

	"github.com/skepkv/skep"
)

var supported error = &skep.Error{Op: "lend GPU memory", Kind: skep.Unsupported, Field: "system", Value: "without pidfd"}

func now() time.Duration { return 0 }

func write(*net.UnixConn, []byte, *os.File) error  { return supported }
func read(*net.UnixConn) ([]byte, *os.File, error) { return nil, nil, supported }
func peerOf(*net.UnixConn) (*process, error)       { return nil, supported }

type process struct{ pid int }

func (*process) wait() bool   { return false }
func (*process) kill() error  { return supported }
func (*process) close() error { return nil }
