// The parts of Apache ECharts that src/kinfolk/reports/static/charts.js draws with.
import { init, use, version } from "echarts/core";
import { CustomChart, LineChart, ScatterChart } from "echarts/charts";
import { GridSimpleComponent, TooltipComponent } from "echarts/components";
import { LabelLayout } from "echarts/features";
import { SVGRenderer } from "echarts/renderers";

use([CustomChart, LineChart, ScatterChart, GridSimpleComponent, TooltipComponent, LabelLayout, SVGRenderer]);
window.echarts = { init, version };
