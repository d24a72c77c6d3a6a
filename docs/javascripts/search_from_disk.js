// A browser refuses to start a worker for a page that was opened from a disk, and the search of the theme runs in one.
// There, it runs in a hidden frame instead, which has the same two functions: `postMessage` and `addEventListener`.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(script) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.scope = new Promise((resolve) => {
        // In some browsers, the frame has its document at once; in others, it is replaced a moment later.
        frame.addEventListener("load", () => {
          const scope = frame.contentWindow;
          scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const element = scope.document.createElement("script");
          element.src = new URL(script, document.baseURI).href;
          element.addEventListener("load", () => resolve(scope));
          scope.document.head.append(element);
        }, { once: true });
      });
      document.body.append(frame);
    }

    postMessage(data) {
      this.scope.then((scope) => scope.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
