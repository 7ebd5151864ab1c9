package sim

import (
	"archive/tar"
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"
	"time"

	"github.com/klauspost/compress/zstd"
)

// ReadConversation reads a Mooncake trace: JSON lines with hash_ids, compressed.
func ReadConversation(path string) ([]Request, error) {
	prompts, err := ReadPrompts(path)
	list := make([]Request, len(prompts))
	for i, p := range prompts {
		list[i] = p.Blocks
	}
	return list, err
}

// mooncakeTokens is the tokens of a block of the published traces.
const mooncakeTokens = 512

// ReadPrompts reads such a trace with the times of its requests.
func ReadPrompts(path string) ([]Prompt, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := zstd.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer z.Close()
	var list []Prompt
	dec := json.NewDecoder(bufio.NewReader(z))
	for {
		var row struct {
			At     int64   `json:"timestamp"` // ms
			Tokens int     `json:"input_length"`
			Hashes Request `json:"hash_ids"`
		}
		if err := dec.Decode(&row); errors.Is(err, io.EOF) {
			return list, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: request %d: %w", path, len(list), err)
		}
		list = append(list, Prompt{time.Duration(row.At) * time.Millisecond, row.Hashes, row.Tokens%mooncakeTokens != 0})
	}
}

// ReadAgentic reads every step-th session of a kv-cache-tester archive (tar, zstd):
// sessions begin apart seconds after one another, and their requests are merged by
// time. Block ids, which are a session's own, are made unique.
func ReadAgentic(path string, step int, apart float64) ([]Request, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := zstd.NewReader(f, zstd.WithDecoderMaxWindow(1<<28))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer z.Close()
	type session struct {
		name     string
		requests []struct {
			T      float64 `json:"t"`
			Hashes Request `json:"hash_ids"`
		}
	}
	var sessions []session
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		s := session{name: h.Name}
		row := struct{ Requests any }{&s.requests}
		if err := json.NewDecoder(t).Decode(&row); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path, h.Name, err)
		}
		sessions = append(sessions, s)
	}
	slices.SortFunc(sessions, func(a, b session) int {
		if a.name < b.name {
			return -1
		}
		return 1
	})
	type timed struct {
		at float64
		r  Request
	}
	var all []timed
	var base uint32
	for i := 0; i < len(sessions); i += step {
		var top uint32
		for _, q := range sessions[i].requests {
			for k := range q.Hashes {
				top = max(top, q.Hashes[k])
				q.Hashes[k] += base
			}
			all = append(all, timed{float64(i)*apart + q.T, q.Hashes})
		}
		base += top + 1
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].at < all[j].at })
	list := make([]Request, len(all))
	for i, t := range all {
		list[i] = t.r
	}
	return list, nil
}
