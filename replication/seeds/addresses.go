package seeds

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/skepkv/skep"
)

// Addresses splits a list of addresses at its commas. field names the list in errors.
//
// Errors: Invalid (an element is empty, or there twice; there are over Max).
func Addresses(op, field, list string) ([]string, error) {
	out := strings.Split(list, ",")
	if len(out) > Max {
		return nil, skep.Invalidf(op, field, fmt.Sprintf("%d addresses", len(out)), fmt.Sprintf("at most %d", Max))
	}
	for i := range out {
		if len(out) > 1 {
			out[i] = strings.TrimSpace(out[i])
		}
		switch {
		case out[i] == "" && len(out) > 1:
			return nil, skep.Invalidf(op, field, fmt.Sprintf("%q", list), "an address before and after each comma")
		case slices.Contains(out[:i], out[i]):
			return nil, skep.Invalidf(op, field, fmt.Sprintf("%q twice", out[i]), "each address once")
		}
	}
	return out, nil
}

// Parse reads the addresses of a client: the one of the server that memory is shared with comes first.
//
// Errors: Invalid.
func Parse(list string) ([]string, error) {
	const op, field = "dial", "addr"
	out, err := Addresses(op, field, list)
	if err != nil || len(out) == 1 {
		return out, err
	}
	for _, a := range out {
		path, socket := strings.CutPrefix(a, "unix:")
		host, port, err := net.SplitHostPort(a)
		n, bad := strconv.ParseUint(port, 10, 16)
		if socket && path == "" || !socket && (err != nil || bad != nil || host == "" || n == 0) {
			return nil, skep.Invalidf(op, field, fmt.Sprintf("%q", a),
				"host:port, or unix:path without a comma: one ends an address")
		}
	}
	if i := slices.IndexFunc(out, Local); i > 0 {
		out[0], out[i] = out[i], out[0]
	}
	return out, nil
}

// Local says whether an address is a socket's of this machine: every connection to it goes to the same server, which
// that of a host may not.
func Local(addr string) bool { return strings.HasPrefix(addr, "unix:") }
