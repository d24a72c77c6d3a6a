package main

import (
	"context"

	"go.gazette.dev/core/broker/client"
	pb "go.gazette.dev/core/broker/protocol"
)

// runWatch prints the journals a selector matches, again whenever they change.
func runWatch(ctx context.Context, o *options, rjc pb.RoutedJournalClient) (event, error) {
	var selector, err = pb.ParseLabelSelector(o.selector)
	if err != nil {
		return nil, err
	}
	var list = client.NewWatchedList(ctx, rjc, pb.ListRequest{Selector: selector}, nil)
	var updates = 0
	for {
		select {
		case <-ctx.Done():
			return event{"updates": updates}, nil
		case err := <-list.UpdateCh():
			if ctx.Err() != nil {
				continue
			}
			if err != nil {
				emit(event{"event": "failed", "error": err.Error()})
				continue
			}
			updates++
			var names = []string{}
			var created = event{}
			for _, journal := range list.List().Journals {
				names = append(names, journal.Spec.Name.String())
				created[journal.Spec.Name.String()] = journal.CreateRevision
			}
			emit(event{
				"event":    "list",
				"journals": names,
				"created":  created,
				"revision": list.List().Header.Etcd.Revision,
			})
		}
	}
}
