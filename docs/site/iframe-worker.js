// A page that is opened from the disk cannot start workers: the search runs in a hidden frame there.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "Search";
      this.frame.reply = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.frame.srcdoc = `<script>postMessage = (data) => frameElement.reply(data)</script><script src="${url}"></script>`;
      this.loaded = new Promise((resolve) => this.frame.addEventListener("load", resolve));
      document.body.append(this.frame);
    }
    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
