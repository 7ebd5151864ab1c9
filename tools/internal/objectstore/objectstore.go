// Package objectstore has the settings of object storage behind a store's drives, and puts it there: for skep serve and
// for a store that is embedded through libskep. See package replication/bucket.
package objectstore

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/bucket"
	"github.com/skepkv/skep/replication/bucket/s3"
	"github.com/skepkv/skep/tools/internal/kvevents"
	"github.com/skepkv/skep/tools/internal/units"
)

// Config is object storage behind the drives.
type Config struct {
	Endpoint        string         `yaml:"endpoint" json:"endpoint" doc:"URL of a server that speaks S3"`
	Bucket          string         `yaml:"bucket" json:"bucket" doc:"which of its buckets"`
	Prefix          string         `yaml:"prefix" json:"prefix" doc:"of all objects' names: a store's own, or a cluster's"`
	Region          string         `yaml:"region" json:"region" doc:"empty: the server is asked"`
	CredentialsFile string         `yaml:"credentials_file" path:"" json:"credentials_file" doc:"access key and secret key, a line each; empty: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the machine's role"`
	KeyFile         string         `yaml:"key_file" path:"" json:"key_file" doc:"key that objects are encrypted with, 64 hexadecimal digits, the same at every node of a cluster"`
	OtherKeyFile    string         `yaml:"other_key_file" path:"" json:"other_key_file" doc:"is read, too, while keys change"`
	DropOther       bool           `yaml:"drop_other" json:"drop_other" doc:"remove its objects"`
	Namespaces      []string       `yaml:"namespaces" json:"namespaces" doc:"TENANT/NAMESPACE to send; * at its end: all that begin so; unset: all"`
	Every           units.Duration `yaml:"every" json:"every" doc:"between passes over the blocks, and looks at what other nodes sent; 10ms to 2m30s"`
	BeginAt         float64        `yaml:"begin_at" json:"begin_at" doc:"used share of the capacity from which blocks are sent, above 0 to 1"`
	Unfound         bool           `yaml:"unfound" json:"unfound" doc:"send blocks that no lookup has found yet, too"`
	MaxBytes        units.Size     `yaml:"max_bytes" json:"max_bytes" doc:"of all objects; beyond, those go that were used least lately; 0: any"`
	IndexBytes      units.Size     `yaml:"index_bytes" json:"index_bytes" doc:"memory of the index; beyond, objects are left out"`
	Rate            units.Rate     `yaml:"rate" json:"rate" doc:"bytes a second that are sent; 0: as many as go"`
	SendADay        units.Size     `yaml:"send_a_day" json:"send_a_day" doc:"bytes sent a day; 0: any"`
	LoadADay        units.Size     `yaml:"load_a_day" json:"load_a_day" doc:"bytes fetched a day; 0: any"`
	MoneyADay       float64        `yaml:"money_a_day" json:"money_a_day" doc:"what calls and fetched bytes may cost a day, by the prices; 0: any"`
	PriceWrite      float64        `yaml:"price_write" json:"price_write" doc:"of 1000 calls that put or list"`
	PriceRead       float64        `yaml:"price_read" json:"price_read" doc:"of 1000 calls that get"`
	PriceGiB        float64        `yaml:"price_gib" json:"price_gib" doc:"of a GiB fetched"`
	TokensPerSecond float64        `yaml:"tokens_per_second" json:"tokens_per_second" doc:"that engines compute: what is fetched more slowly is not found, where a lookup does not say what computing costs; 0: all is found"`
}

const op = "bucket"

// Default is settings that nobody has touched: with an endpoint, a bucket and a key they are whole.
func Default() Config {
	return Config{Namespaces: []string{"*"}, Every: units.Duration(30 * time.Second), BeginAt: .7, IndexBytes: 1 << 30,
		Rate: 64 << 20}
}

// Check lists what is wrong with the settings, by field; of no endpoint nothing is. It reads no file and asks nobody.
//
// Errors: Invalid.
func (c *Config) Check() (wrong []error) {
	if c.Endpoint == "" {
		return nil
	}
	bad := func(is bool, field string, value, limit any) {
		if is {
			wrong = append(wrong, skep.Invalidf(op, field, value, limit))
		}
	}
	said := func(err error) {
		if err != nil {
			wrong = append(wrong, &skep.Error{Op: op, Kind: skep.Invalid, Field: "bucket", Err: err})
		}
	}
	bad(c.KeyFile == "", "bucket.key_file", "empty", "a file with a key: objects are always encrypted")
	_, err := s3.Open(c.storage())
	said(err)
	bad(c.DropOther && c.OtherKeyFile == "", "bucket.other_key_file", "empty", "a file with a key, where its objects go")
	bad(c.Every == 0, "bucket.every", c.Every, "10ms to 2m30s")
	bad(!(c.TokensPerSecond >= 0) || c.TokensPerSecond > 1e9, "bucket.tokens_per_second", c.TokensPerSecond, "0 to 1e9")
	o := c.options()
	said(o.Check())
	return append(wrong, kvevents.CheckPatterns("bucket.namespaces", c.Namespaces)...)
}

func (c *Config) storage() s3.Options {
	return s3.Options{Endpoint: c.Endpoint, Bucket: c.Bucket, Prefix: c.Prefix, Region: c.Region}
}

func (c *Config) options() bucket.Options {
	o := bucket.Options{
		Sends:   func(n *skep.NamespaceSpec) bool { return kvevents.Selects(c.Namespaces, n) },
		BeginAt: c.BeginAt, Every: time.Duration(c.Every), Unfound: c.Unfound, MaxBytes: int64(c.MaxBytes),
		IndexBytes: int64(c.IndexBytes),
		Budget: bucket.Budget{
			Rate: int64(c.Rate), SendADay: int64(c.SendADay), LoadADay: int64(c.LoadADay), MoneyDay: c.MoneyADay,
			Prices: bucket.Prices{Write: c.PriceWrite / 1000, Read: c.PriceRead / 1000, Byte: c.PriceGiB / (1 << 30)},
		},
	}
	if c.TokensPerSecond > 0 {
		o.Recompute = &skep.RecomputeCost{PerToken: time.Duration(float64(time.Second) / c.TokensPerSecond)}
	}
	return o
}

// Open puts object storage behind a store, which it owns from then on unless it fails. alone: no other store writes
// below the prefix. serves: see bucket.Options. A nil log: nothing is logged.
//
// Errors: Invalid, by field; it says nothing of what is in the files.
func (c *Config) Open(st skep.Store, alone bool, serves func() bool, log *slog.Logger) (*bucket.Store, error) {
	failed := func(field string, err error) error {
		return &skep.Error{Op: op, Kind: skep.Invalid, Field: field, Err: err}
	}
	so := c.storage()
	if c.CredentialsFile != "" {
		text, err := readFile(c.CredentialsFile)
		if err != nil {
			return nil, failed("bucket.credentials_file", err)
		}
		lines := strings.Fields(string(text))
		if len(lines) != 2 {
			return nil, skep.Invalidf(op, "bucket.credentials_file", fmt.Sprintf("%d lines", len(lines)),
				"2: access key and secret key")
		}
		so.AccessKey, so.SecretKey = lines[0], lines[1]
	}
	at, err := s3.Open(so)
	if err != nil {
		return nil, err
	}
	o := c.options()
	o.Bucket, o.Alone, o.Serves, o.Logger = at, alone, serves, log
	if o.Key, err = readKey(c.KeyFile); err != nil {
		return nil, failed("bucket.key_file", err)
	}
	if o.DropOther = c.DropOther; c.OtherKeyFile != "" {
		if o.OtherKey, err = readKey(c.OtherKeyFile); err != nil {
			return nil, failed("bucket.other_key_file", err)
		}
	}
	return bucket.New(st, o)
}

// readKey reads a key of 64 hexadecimal digits. Its errors say nothing of what is in the file.
func readKey(path string) ([]byte, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(key) != bucket.KeySize {
		return nil, errors.New("it has to be 64 hexadecimal digits (openssl rand -hex 32)")
	}
	return key, nil
}

// maxFile is the longest file of a key or of credentials.
const maxFile = 64 << 10

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = skep.Invalidf(op, "bytes of the file", fmt.Sprintf("over %d", maxFile), fmt.Sprintf("at most %d", maxFile))
	}
	return b, err
}
