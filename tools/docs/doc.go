// Command docs writes the reference pages that are made from the code: the settings of skep serve, the metrics of
// all commands, and JSON Schemas of what commands print, whose descriptions are the comments of the fields.
//
//	go run ./tools/docs     writes them (make docs does, too)
//	go test ./tools/docs    fails where a page is not what would be written, and where the page of errors lacks a kind
package main
